"""Weighted sums of rows, in one pass, accumulated in float64 (numba)."""

from typing import Any

import numpy as np
import torch

from fedsdg.aggregation.engines.kernels import loops
from fedsdg.aggregation.engines.kernels.columns import (
    FEW_ROWS,
    LONGEST_BLOCK,
    STORAGES,
    Rows,
    laid_out,
    over_parts,
)


def weighted_sum(
    rows: Rows, weights: np.ndarray, out: torch.Tensor, base: torch.Tensor | None = None
) -> bool:
    """out [d] = base + sum_k w_k x_k, rounded once; whether all of it is finite.

    weights: [M] float64. out: contiguous; base: like it, or out itself, or None for nothing. Goes
    from the last columns to the first, as a pass before it ended there. Also where a weight is 0,
    what is not finite shows.
    """
    real = np.float64 if rows.dtype == torch.float64 else np.float32
    # Only the totals are read again: so the pieces of many rows, too many for the processor to
    # follow at once, may be long (see block_width), where they need not be formed first.
    width = 128
    if rows.size > FEW_ROWS:
        width = LONGEST_BLOCK if rows.lie_as(real) else LONGEST_BLOCK // 4
    start_of_base = 0 if base is None else base.data_ptr()
    apart = rows._replace(addresses=_and_origin(rows), origin=0)
    source, slots = apart.source, [k % 8 for k in range(rows.size)] + [8] * bool(rows.origin)
    target = start_of_base, out.data_ptr(), STORAGES[out.dtype]

    def work(start: int, stop: int) -> Any:
        layout = laid_out(apart, real, width, slots)
        total = np.empty(width)
        return loops.weighted_sum(source, start, stop, width, *layout, weights, total, *target)

    return bool(over_parts(rows, width, work, backwards=True) == 0)


def _and_origin(rows: Rows) -> np.ndarray:
    return np.append(rows.addresses, rows.origin) if rows.origin else rows.addresses
