"""Weighted sums of rows, in one pass, accumulated in float64 (triton).

Each number costs a conversion and a multiplication in float64. An H100 does these at more than
twice the speed of its memory; a GPU that computes float64 at 1/64 of float32 about keeps up with
its own (4090), or reaches half of it (3090), and the result is worth that.
"""

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl

from fedsdg.aggregation.engines.kernels.cuda.launching import AnyRows, on_device, sent
from fedsdg.aggregation.engines.kernels.cuda.places import (
    BASE,
    ORIGIN,
    RESULT,
    columns_of,
    row_start,
    vector_start,
)
from fedsdg.aggregation.engines.kernels.cuda.rounding import rounded
from fedsdg.aggregation.engines.kernels.cuda.tables import Layout, Rows, TabledRows


@triton.jit(do_not_specialize=["blocks", "size"])
def _weighted_sum(
    rows,
    stride,
    d,
    origin,
    table,
    places,
    blocks,
    size,
    weights,
    base,
    out,
    odd,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
    ALIGNED: tl.constexpr,
    WRITE: tl.constexpr,
):
    """odd[part] = how many sums of the block are not finite."""
    part = tl.program_id(0)
    facts, j, inside = columns_of(part, d, size, table, places, blocks, BLOCK, ALIGNED)
    total = tl.zeros((BLOCK,), dtype=tl.float64)
    if origin is not None:
        o = vector_start(origin, ORIGIN, facts, table, ALIGNED)
        o = tl.load(o + j, mask=inside, other=0).to(tl.float64)
    for k in tl.range(0, size, loop_unroll_factor=UNROLL):
        at = row_start(rows, stride, k, facts, table, ALIGNED)
        x = tl.load(at + j, mask=inside, other=0).to(tl.float64)
        if origin is not None:
            x -= o
        total += tl.load(weights + k) * x
    if base is not None:
        b = vector_start(base, BASE, facts, table, ALIGNED)
        total += tl.load(b + j, mask=inside, other=0).to(tl.float64)
    result = rounded(total, out.dtype.element_ty)
    if WRITE:
        tl.store(vector_start(out, RESULT, facts, table, ALIGNED) + j, result, mask=inside)
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
    return ~_summed(rows, weights, out, base)[1].any()


def write_weighted_sums(
    rows: TabledRows,
    weights: np.ndarray,
    outs: Sequence[torch.Tensor],
    bases: Sequence[torch.Tensor] | None,
    *,
    rehearse: bool = False,
) -> list[int]:
    """As `weighted_sum`, a list of tensors for one; the positions of those that are not finite.

    rehearse: nothing is written.
    """
    there = sent(np.asarray(weights, dtype=np.float64), rows.tensor.device)
    base = None if bases is None else bases[0]
    layout, odd = _summed(rows.into(outs, bases), there, outs[0], base, write=not rehearse)
    return layout.tensors(odd)


def _summed(
    rows: AnyRows,
    weights: torch.Tensor,
    out: torch.Tensor,
    base: torch.Tensor | None,
    *,
    write: bool = True,
) -> tuple[Layout, torch.Tensor]:
    """(the blocks, how many results of each are not finite)."""
    block = 1024 if rows.d >= 1 << 20 else 256
    layout = rows.laid_out(block)
    odd = torch.empty(layout.blocks, dtype=torch.int32, device=rows.tensor.device)
    with on_device(rows):
        _weighted_sum[(len(odd),)](
            *layout.sources,
            rows.size,
            weights,
            base,
            out,
            odd,
            BLOCK=block,
            UNROLL=4,
            ALIGNED=layout.aligned,
            WRITE=write,
            num_warps=4,
        )
    return layout, odd
