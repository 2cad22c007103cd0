"""Data: labelled images, and their partition among clients.

Import the modules themselves; nothing is loaded here:

- ``sources``: declarations of data sets, and the table of built-in ones;
- ``files``, ``rows``, ``pixels``: the files of a set, their columns, their images;
- ``reading``: ``load`` a data set, or ``survey`` it without decoding an image;
- ``datasets``: a loaded data set, its hash, stratified draws and the global test set;
- ``images``: from stored pixels to the input of a backbone;
- ``skew``, ``allocation``, ``partition``, ``partition_files``: samples of the clients;
- ``benchmark_set``: samples that the server keeps;
- ``glyphs``: rendered letters, a source task for pretraining.
"""
