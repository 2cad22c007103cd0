"""The kernels by name: numba's on the CPU and triton's on a GPU offer the same functions."""

from typing import Any, NamedTuple


class Kernels(NamedTuple):
    """What `as_rows` makes of a tensor [M, d], the functions of the three modules take."""

    as_rows: Any
    moments: Any
    sums: Any
    trimmed_means: Any


def load(name: str) -> Kernels:
    """ "numba" or "triton"; imports the compiler."""
    # Both are written out, for `reach` finds imports by reading.
    if name == "triton":
        from fedsdg.aggregation.engines.kernels.cuda import moments, sums, tables, trimmed_means

        return Kernels(tables.as_rows, moments, sums, trimmed_means)
    return _on_cpu()


def _on_cpu() -> Kernels:
    from fedsdg.aggregation.engines.kernels import columns, moments, sums, trimmed_means

    return Kernels(columns.as_rows, moments, sums, trimmed_means)
