"""Means of the middle ranks by a comparator network, vectorised over columns (numba).

A network compares the same pairs of rows whatever the numbers are: a cache block of columns goes
through it without a branch, many columns at a time.
"""

from typing import Any

import numpy as np
import torch

from fedsdg.aggregation.engines.kernels import loops
from fedsdg.aggregation.engines.kernels.columns import STORAGES, Rows, block_width, over_parts
from fedsdg.aggregation.engines.kernels.networks import selection_network

MOST_ROWS = 1024
"""A network of more comparators than for these takes long to lay out."""


def trimmed_mean(
    rows: Rows, trim: int, out: torch.Tensor, base: torch.Tensor | None = None
) -> bool:
    """out [d] = base + the mean of ranks trim … M-1-trim of each column; whether all is finite.

    0 <= 2 trim < M; trim = (M-1)//2 is the median. NaN where a number of the column is not finite.
    Added in float64. out and base: see `sums.weighted_sum`.
    """
    real = np.float64 if rows.dtype == torch.float64 else np.float32
    # Twice as wide as where a block is read twice: every comparator goes over it again.
    width, size = 2 * block_width(rows, real), rows.size
    start_of_base = 0 if base is None else base.data_ptr()
    network, source = selection_network(size, trim), rows.source
    target = start_of_base, out.data_ptr(), STORAGES[out.dtype]

    def work(start: int, stop: int) -> Any:
        buffer, total = np.zeros(size * width, real), np.empty(width)
        return loops.trimmed_mean(source, start, stop, width, buffer, network, trim, total, *target)

    return bool(over_parts(rows, width, work) == 0)
