"""The kernels by name: numba's on the CPU and triton's on a GPU offer the same functions."""

from typing import Any, NamedTuple


class Kernels(NamedTuple):
    """What `as_rows` makes of a tensor [M, d], the functions of the three modules take."""

    as_rows: Any
    statistics: Any
    sums: Any
    order_statistics: Any


def load(name: str) -> Kernels:
    """ "numba" or "triton"; imports the compiler."""
    if name == "triton":
        from fedsdg.aggregation.kernels.cuda import order_statistics, statistics, sums
        from fedsdg.aggregation.kernels.cuda.rows import as_rows

        return Kernels(as_rows, statistics, sums, order_statistics)
    from fedsdg.aggregation.kernels import columns
    from fedsdg.aggregation.kernels import order_statistics as on_cpu
    from fedsdg.aggregation.kernels import statistics as statistics_on_cpu
    from fedsdg.aggregation.kernels import sums as sums_on_cpu

    return Kernels(columns.as_rows, statistics_on_cpu, sums_on_cpu, on_cpu)
