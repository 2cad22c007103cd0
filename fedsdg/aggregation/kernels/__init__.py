"""The fast paths behind statistics, weighted sums and medians; the plain reference is beside them.

Each kernel walks over column blocks that fit in the cache, so that every number of the rows [M, d]
is read from memory once, whatever is computed of it.
"""
