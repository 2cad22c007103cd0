"""Norms, dots with a reference, and squared distances of rows, each in one pass (numba).

Within a cache block the products are formed and added in `real` (float32 for float32 rows); over
the blocks in float64. A result that may have left the range of `real` is not given: the caller
takes it again in float64.
"""

from functools import partial
from typing import Any

import numpy as np
import torch

from fedsdg.aggregation.engines.kernels import loops, ranges
from fedsdg.aggregation.engines.kernels.columns import (
    LONGEST_BLOCK,
    Rows,
    block_width,
    laid_out,
    over_parts,
)


def moments(rows: Rows, coefficients: np.ndarray, real: Any) -> tuple[np.ndarray, np.ndarray]:
    """([M + 1] squared norms of the rows and of z, [M] dots with z), z = sum_k c_k x_k."""
    width = block_width(rows, real)
    c, source, apart = coefficients.astype(real), rows.source, rows._replace(origin=0)

    def work(start: int, stop: int) -> np.ndarray:
        totals = np.zeros((2, rows.size + 1))
        layout = laid_out(apart, real, width, range(rows.size))
        loops.moments(source, start, stop, width, *layout, c, np.empty(width, real), totals)
        return totals

    squares, dots = over_parts(rows, width, work)
    return squares, dots[:-1]


def distances(rows: Rows, real: Any) -> np.ndarray:
    """[M, M] ||x_i - x_j||^2 from differences: exactly symmetric, and zero for equal rows.

    The origin is common to all, so the rows are compared as they are: with one rounding instead of
    three.
    """
    rows = rows._replace(origin=0)
    width, size = block_width(rows, real), rows.size
    source = rows.source

    def work(start: int, stop: int) -> np.ndarray:
        totals = np.zeros((size + 4, size + 4))
        buffer, places, step = laid_out(rows, real, width, range(size))
        places = np.append(places, np.repeat(places[-1:], 4))
        loops.distances(source, start, stop, width, buffer, places, step, totals)
        return totals

    upper = np.triu(over_parts(rows, width, work)[:size, :size], 1)
    return upper + upper.T


def moments_in_range(rows: Rows, squares: np.ndarray, real: Any) -> bool:
    """Whether squares [M + 1] as of `moments`, taken in `real`, are good to its precision."""
    return ranges.moments_in_range(squares, rows.d, real, partial(_vanishes, rows))


def distances_in_range(rows: Rows, found: np.ndarray, real: Any) -> bool:
    """Whether squared distances [M, M] between the rows, taken in `real`, are good to it."""
    return ranges.distances_in_range(found, rows.d, real, partial(_vanishes, rows))


def _vanishes(rows: Rows, k: int, other: int | None) -> bool:
    """Whether x_k is 0 everywhere, or what lies at row k is the same as at the other."""
    origin = rows.origin if other is None else int(rows.addresses[other])
    row = rows._replace(addresses=rows.addresses[k : k + 1], origin=origin)
    real = np.float64 if rows.dtype == torch.float64 else np.float32
    width, source = LONGEST_BLOCK, row.source

    def work(start: int, stop: int) -> int:
        return int(loops.nonzeros(source, start, stop, width, np.empty(width, real)))

    return not over_parts(row, width, work)
