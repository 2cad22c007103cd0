"""Data: labelled images, and their partition among clients.

Import the modules themselves; nothing is loaded here:

- ``sources``: declarations of data sets, and the table of built-in ones;
- ``files``, ``rows``, ``pixels``: which files belong to a set, their columns, their images;
- ``reading``: ``load`` a data set, or ``survey`` it without decoding an image;
- ``datasets``: what a loaded data set is, and its hash;
- ``images``: from stored pixels to the input of a backbone;
- ``stratified``: draws in which every class has its share, and the global test set;
- ``skew``, ``allocation``, ``partition``, ``partition_files``: who holds which sample;
- ``benchmark_set``: samples that the server keeps;
- ``client_groups``, ``label_clusters``, ``transforms``: clients that differ, or are alike;
- ``glyphs``: rendered letters, a source task for pretraining.
"""
