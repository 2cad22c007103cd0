"""Weighted sums of rows, in one pass, accumulated in float64 (triton).

Each number costs a conversion and a multiplication in float64. An H100 does these at more than
twice the speed of its memory; a GPU that computes float64 at 1/64 of float32 about keeps up with
its own (4090), or reaches half of it (3090), and the result is worth that.
"""

import torch
import triton
import triton.language as tl

from fedsdg.aggregation.kernels.cuda.launching import column_stride, on_device
from fedsdg.aggregation.kernels.cuda.rounding import rounded


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
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    j = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
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
    tl.store(out + j, rounded(total, out.dtype.element_ty), mask=inside)


def weighted_sum(
    rows: torch.Tensor,
    weights: torch.Tensor,
    out: torch.Tensor,
    base: torch.Tensor | None = None,
    origin: torch.Tensor | None = None,
) -> None:
    """out [d] = base + sum_k w_k (x_k - origin); weights [M]; base and out may be the same."""
    size, d = rows.shape
    block = 1024 if d >= 1 << 20 else 256
    with on_device(rows):
        _weighted_sum[(triton.cdiv(d, block),)](
            rows.detach(),
            column_stride(rows),
            size,
            d,
            origin,
            weights.to(dtype=torch.float64, device=rows.device),
            base,
            out,
            BLOCK=block,
            UNROLL=4,
            num_warps=4,
        )
