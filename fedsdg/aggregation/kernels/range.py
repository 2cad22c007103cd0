"""Whether sums of squares in float32 are as accurate as float32 allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from fedsdg.aggregation.rows import Block


def in_range(squares: np.ndarray, block: Block) -> bool:
    """Return whether no square over- or underflowed; otherwise they are computed in float64.

    Args:
        squares: Sums over the block's columns, of any shape; NaN comes from the updates.
        block: The columns.
    """
    if block.dtype == torch.float64 or np.isnan(squares).any():
        return True
    least = block.ends[-1] * float(np.finfo(np.float32).tiny)
    return bool((np.isfinite(squares) & (squares >= least)).all())
