"""Whether sums of squares in float32 are as accurate as float32 allows.

If a square over- or underflowed, all are computed in float64. A square of zero is right where rows
are equal, such as that of a client that was not trained, or of two that sent the same.
"""

from __future__ import annotations

import numpy as np
import torch

from fedsdg.aggregation.rows import Block


def norms_in_range(totals: np.ndarray, scale: float, block: Block) -> np.ndarray | None:
    """Check what `norms_and_dots` of a kernel found.

    Args:
        totals: [2, M + 1] its squares and products, for coefficients divided by ``scale``.
        scale: By what the coefficients were divided.
        block: The rows that it read.

    Returns:
        ``totals`` for the coefficients themselves; None if a sum is not accurate.
    """
    squares, clients = totals[0, :-1], np.arange(1, block.size + 1)
    vanishes = totals[0, -1] < _least(block) and squares.any()
    if np.isinf(totals).any() or vanishes or not _in_range(squares, block, 0 * clients, clients):
        return None
    totals[0, -1] *= scale**2
    totals[1, :-1] *= scale
    return totals


def distances_in_range(sums: np.ndarray, block: Block) -> np.ndarray | None:
    """Check what `distances` of a kernel found.

    Args:
        sums: [M, M] squared distances in the upper triangle.
        block: The rows that it read.

    Returns:
        All squared distances; None if one is not accurate.
    """
    i, j = np.triu_indices(block.size, 1)
    upper = np.triu(sums, 1)
    return upper + upper.T if _in_range(upper[i, j], block, i + 1, j + 1) else None


def _least(block: Block) -> float:
    """The least square of a row whose summands do not underflow for the most part."""
    in_float64 = block.dtype == torch.float64
    return 0.0 if in_float64 else block.ends[-1] * float(np.finfo(np.float32).tiny)


def _in_range(squares: np.ndarray, block: Block, first: np.ndarray, second: np.ndarray) -> bool:
    """Whether the squares of the differences of rows are right; NaN comes from the rows."""
    doubtful = np.flatnonzero((squares < _least(block)) | np.isinf(squares))[::-1]
    # Rows that are equal to the same are equal: each is compared with the first only.
    first_of = dict(zip(second[doubtful].tolist(), first[doubtful].tolist(), strict=True))
    return not squares[doubtful].any() and all(_equal(block, i, j) for j, i in first_of.items())


def _equal(block: Block, first: int, second: int) -> bool:
    """Whether two rows are the same numbers, or one is 0 if there is no first."""
    pairs = [(row[first], row[second]) for row in block.tensors]
    return all(not b.any() if a is None else torch.equal(a, b) for a, b in pairs)  # type: ignore
