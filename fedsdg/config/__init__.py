"""The config of an experiment: one tree of sections, checked in full before anything runs.

Import the modules themselves; none of them imports torch:

- ``layers``: YAML files laid over one another, and single values over them;
- ``sections``, ``backbones``, ``entries``, ``search``: what a config consists of;
- ``config``: the whole, its scenarios and its runs;
- ``run``: one run, and its address;
- ``plugins``: methods, parts and data sets of a user's own;
- ``reference``: the page that explains every key.
"""
