"""Data: image sets, letters for pretraining, and the split of samples among clients.

Import the modules themselves; nothing is loaded here, so that ``import fedsdg.data`` stays cheap:

- ``datasets``: the table of data sets and ``load_dataset``;
- ``own_data``, ``own_rows``, ``own_images``: one's own data, as a config describes them;
- ``data_files``, ``splits``: the files of a data set, and the split that each belongs to;
- ``image_metadata``: tables ``metadata.csv`` beside images;
- ``encoded_images``: formats of image files, and how deep their pixels are;
- ``domains``: sets whose samples come from several domains;
- ``images``: from uint8 pixels to what a backbone takes;
- ``glyphs``: rendered letters, a source task made on the spot;
- ``skew``, ``partition``: who holds which samples, and in which split;
- ``natural``: clients that are the values of a column;
- ``label_clusters``: clients whose labels are alike;
- ``client_shares``: a share of the clients as whole clients;
- ``client_groups``: which clients differ from the others, and which of them alike;
- ``label_conflict``: clients that name the classes otherwise;
- ``transforms``: images turned, thicker, noisy, inverted;
- ``label_noise``: wrong labels at a rate for each client;
- ``benchmark_set``: samples that the server keeps for itself.
"""
