"""The fast paths behind statistics, weighted sums and order statistics (numba, on the CPU).

The plain reference is beside them. Each kernel walks over column blocks that fit in the cache, so
that every number of the rows is read from memory once, whatever is computed of it. Rows are given
by their addresses (`columns.Rows`): the rows of a tensor, or vectors anywhere in memory less an
origin, which are never formed as a whole. Expected use::

    rows = parameter_rows(clients, origin)          # Delta_k = theta_k - theta_g
    found = measured_by_kernels(rows)               # in engines.statistics
    sums.weighted_sum(rows, weights, out, origin)   # out = theta_g + sum_k w_k Delta_k
"""
