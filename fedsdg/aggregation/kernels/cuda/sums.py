"""Weighted sums of rows, in one pass, accumulated in float64 (triton).

Each number costs a conversion and a multiplication in float64. An H100 does these at more than
twice the speed of its memory; a GPU that computes float64 at 1/64 of float32 about keeps up with
its own (4090), or reaches half of it (3090), and the result is worth that.
"""

import numpy as np
import torch
import triton
import triton.language as tl

from fedsdg.aggregation.kernels.cuda.launching import on_device, sent
from fedsdg.aggregation.kernels.cuda.rounding import rounded
from fedsdg.aggregation.kernels.cuda.rows import Rows


@triton.jit(do_not_specialize=["size"])
def _weighted_sum(
    rows,
    stride,
    size,
    d,
    origin,
    weights,
    base,
    out,
    odd,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """odd[part] = how many sums of the block are not finite."""
    part = tl.program_id(0)
    j = part.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = j < d
    total = tl.zeros((BLOCK,), dtype=tl.float64)
    if origin is not None:
        o = tl.load(origin + j, mask=inside, other=0).to(tl.float64)
    for k in tl.range(0, size, loop_unroll_factor=UNROLL):
        at = rows + tl.cast(k, tl.int64) * stride
        x = tl.load(at + j, mask=inside, other=0).to(tl.float64)
        if origin is not None:
            x -= o
        total += tl.load(weights + k) * x
    if base is not None:
        total += tl.load(base + j, mask=inside, other=0).to(tl.float64)
    result = rounded(total, out.dtype.element_ty)
    tl.store(out + j, result, mask=inside)
    faults = inside & (result.to(tl.float64) * 0 != 0)
    tl.store(odd + part, tl.sum(faults.to(tl.int32), axis=0))


def weighted_sum(
    rows: Rows, weights: np.ndarray, out: torch.Tensor, base: torch.Tensor | None = None
) -> bool:
    """out [d] = base + sum_k w_k x_k, rounded once; whether all of it is finite.

    weights: [M] float64. base and out may be the same. Also where a weight is 0, what is not finite
    shows.
    """
    there = sent(np.asarray(weights, dtype=np.float64), rows.tensor.device)
    return bool(weighted_sum_there(rows, there, out, base))


def weighted_sum_there(
    rows: Rows, weights: torch.Tensor, out: torch.Tensor, base: torch.Tensor | None = None
) -> torch.Tensor:
    """As `weighted_sum`, of weights [M] float64 where the rows are; so is the answer, a bool."""
    block = 1024 if rows.d >= 1 << 20 else 256
    device = rows.tensor.device
    odd = torch.empty(triton.cdiv(rows.d, block), dtype=torch.int32, device=device)
    with on_device(rows):
        _weighted_sum[(len(odd),)](
            rows.tensor,
            rows.stride,
            rows.size,
            rows.d,
            rows.origin,
            weights,
            base,
            out,
            odd,
            BLOCK=block,
            UNROLL=4,
            num_warps=4,
        )
    return ~odd.any()
