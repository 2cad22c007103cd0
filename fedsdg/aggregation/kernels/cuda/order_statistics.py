"""Trimmed means and medians of columns, by counting ranks (triton).

The rank of a number is how many of its column are smaller, or equal and of an earlier client.
Counting takes M^2 comparisons per column but moves nothing: the numbers stay in the registers,
and rows come from the cache one by one. (A sorting network moves numbers between threads.)
"""

import numpy as np
import torch
import triton
import triton.language as tl

from fedsdg.aggregation.backends import MOST_TRITON_ROWS
from fedsdg.aggregation.kernels.cuda.launching import REALS, on_device, tile
from fedsdg.aggregation.kernels.cuda.rounding import rounded
from fedsdg.aggregation.kernels.cuda.rows import Rows

MOST_ROWS = MOST_TRITON_ROWS


@triton.jit(do_not_specialize=["size", "trim"])
def _trimmed_mean(
    rows,
    stride,
    size,
    d,
    trim,
    origin,
    base,
    out,
    odd,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    REAL: tl.constexpr,
):
    """odd[part] = how many numbers of the block are not finite."""
    part = tl.program_id(0)
    stride = tl.cast(stride, tl.int64)
    j = part.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, ROWS)[:, None]
    inside = (k < size) & (j < d)[None, :]
    x = tl.load(rows + k * stride + j[None, :], mask=inside, other=0).to(REAL)
    faults = tl.sum((x * 0 != 0).to(tl.int32), axis=0)
    tl.store(odd + part, tl.sum(faults, axis=0))
    rank = tl.zeros((ROWS, BLOCK), dtype=tl.int32)
    for i in range(size):
        y = tl.load(rows + i * stride + j, mask=j < d, other=0).to(REAL)[None, :]
        rank += ((y < x) | ((y == x) & (tl.cast(i, tl.int32) < k))).to(tl.int32)
    kept = inside & (rank >= trim) & (rank < size - trim)
    x = x.to(tl.float64)
    if origin is not None:
        x -= tl.load(origin + j, mask=j < d, other=0).to(tl.float64)[None, :]
    # Divided before they are added, and kept between them: so nothing overflows.
    share = 1.0 / tl.cast(size - 2 * trim, tl.float64)
    mean = tl.sum(tl.where(kept, x * share, 0.0), axis=0)
    mean = tl.maximum(mean, tl.min(tl.where(kept, x, float("inf")), axis=0))
    mean = tl.minimum(mean, tl.max(tl.where(kept, x, float("-inf")), axis=0))
    if base is not None:
        mean += tl.load(base + j, mask=j < d, other=0).to(tl.float64)
    mean = tl.where(faults == 0, mean, float("nan"))
    tl.store(out + j, rounded(mean, out.dtype.element_ty), mask=j < d)


def trimmed_mean(
    rows: Rows, trim: int, out: torch.Tensor, base: torch.Tensor | None = None
) -> bool:
    """out [d] = base + the mean of ranks trim … M-1-trim of each column; whether all is finite.

    0 <= 2 trim < M; trim = (M - 1) // 2 is the median. NaN where a number of the column is not
    finite. Added in float64. base and out may be the same.
    """
    real = np.float64 if rows.dtype == torch.float64 else np.float32
    held = tile(rows.size, 2048, 16, real, least=8)
    parts = triton.cdiv(rows.d, held.columns)
    odd = torch.empty(parts, dtype=torch.int32, device=rows.tensor.device)
    with on_device(rows):
        _trimmed_mean[(parts,)](
            rows.tensor,
            rows.stride,
            rows.size,
            rows.d,
            trim,
            rows.origin,
            base,
            out,
            odd,
            REAL=REALS[real],
            **held.sizes,
        )
    return not bool(odd.any())
