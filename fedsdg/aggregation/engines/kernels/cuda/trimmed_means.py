"""Trimmed means and medians of columns (triton).

Of few rows a thread holds all numbers of its columns in registers and brings the middle ranks into
place by a comparator network, whose positions are known when the kernel is compiled: nothing moves
between threads. Of many rows the ranks are counted: the rank of a number is how many of its column
are smaller, or equal and of an earlier client. That takes M^2 comparisons per column but needs no
more registers, and rows come from the cache one by one.
"""

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl

from fedsdg.aggregation.engines.backends import MOST_TRITON_ROWS
from fedsdg.aggregation.engines.kernels.cuda.launching import (
    REALS,
    AnyRows,
    Tile,
    formed,
    on_device,
    tile,
)
from fedsdg.aggregation.engines.kernels.cuda.places import (
    BASE,
    ORIGIN,
    RESULT,
    columns_of,
    row_start,
    row_starts,
    vector_start,
)
from fedsdg.aggregation.engines.kernels.cuda.rounding import rounded
from fedsdg.aggregation.engines.kernels.cuda.tables import Layout, Rows, TabledRows
from fedsdg.aggregation.engines.kernels.networks import selection_network

MOST_ROWS = MOST_TRITON_ROWS
NETWORK_ROWS = 32
"""Of so many at most the numbers of a column fit the registers of a thread."""
HELD = 32
"""Numbers in the registers of a thread, about."""
WARPS = 4


@triton.jit
def _exchanged(xs, FIRST: tl.constexpr, LAST: tl.constexpr):
    """The tuple with the smaller of two numbers at FIRST and the larger at LAST, behind it."""
    low, high = tl.minimum(xs[FIRST], xs[LAST]), tl.maximum(xs[FIRST], xs[LAST])
    # Triton unpacks no tuple into another.
    return xs[:FIRST] + (low,) + xs[FIRST + 1 : LAST] + (high,) + xs[LAST + 1 :]  # noqa: RUF005


@triton.jit
def _selected_mean(
    rows,
    stride,
    d,
    origin,
    table,
    places,
    blocks,
    base,
    out,
    odd,
    SIZE: tl.constexpr,
    TRIM: tl.constexpr,
    NETWORK: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr,
    WRITE: tl.constexpr,
    FORMED: tl.constexpr,
    REAL: tl.constexpr,
):
    """odd[part] = how many numbers of the block are not finite."""
    part = tl.program_id(0)
    facts, j, inside = columns_of(part, d, SIZE, table, places, blocks, BLOCK, ALIGNED)
    faults = tl.zeros((BLOCK,), dtype=tl.int32)
    shift = tl.zeros((BLOCK,), dtype=tl.float64)
    if origin is not None:
        o = vector_start(origin, ORIGIN, facts, table, ALIGNED)
        shift += tl.load(o + j, mask=inside, other=0).to(tl.float64)
    xs = ()
    for k in tl.static_range(SIZE):
        at = row_start(rows, stride, k, facts, table, ALIGNED)
        x = tl.load(at + j, mask=inside, other=0).to(REAL)
        apart = x.to(FORMED) - shift.to(FORMED)
        faults += (apart * 0 != 0).to(tl.int32)
        xs = xs + (x,)  # type: ignore[assignment] # noqa: RUF005
    for c in tl.static_range(PAIRS):
        xs = _exchanged(xs, NETWORK[2 * c], NETWORK[2 * c + 1])
    low, high = xs[TRIM], xs[TRIM]  # type: ignore[var-annotated]
    mean = tl.zeros((BLOCK,), dtype=tl.float64)
    # Divided before they are added, and kept between them: so nothing overflows.
    for k in tl.static_range(TRIM, SIZE - TRIM):
        low, high = tl.minimum(low, xs[k]), tl.maximum(high, xs[k])
        mean += (xs[k].to(tl.float64) - shift) * (1.0 / (SIZE - 2 * TRIM))
    mean = tl.maximum(mean, low.to(tl.float64) - shift)
    mean = tl.minimum(mean, high.to(tl.float64) - shift)
    if base is not None:
        b = vector_start(base, BASE, facts, table, ALIGNED)
        mean += tl.load(b + j, mask=inside, other=0).to(tl.float64)
    mean = tl.where(faults == 0, mean, float("nan"))
    result = rounded(mean, out.dtype.element_ty)
    if WRITE:
        tl.store(vector_start(out, RESULT, facts, table, ALIGNED) + j, result, mask=inside)
    faults = inside & (result.to(tl.float64) * 0 != 0)
    tl.store(odd + part, tl.sum(faults.to(tl.int32), axis=0))


@triton.jit(do_not_specialize=["blocks", "size", "trim"])
def _trimmed_mean(
    rows,
    stride,
    d,
    origin,
    table,
    places,
    blocks,
    size,
    trim,
    base,
    out,
    odd,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr,
    WRITE: tl.constexpr,
    FORMED: tl.constexpr,
    REAL: tl.constexpr,
):
    """odd[part] = how many numbers of the block are not finite."""
    part = tl.program_id(0)
    facts, j, there = columns_of(part, d, size, table, places, blocks, BLOCK, ALIGNED)
    k = tl.arange(0, ROWS)
    starts = row_starts(rows, stride, k, k < size, facts, table, ALIGNED)
    k = k[:, None]
    inside = (k < size) & there[None, :]
    x = tl.load(starts[:, None] + j[None, :], mask=inside, other=0).to(REAL)
    apart = x.to(FORMED)
    if origin is not None:
        o = vector_start(origin, ORIGIN, facts, table, ALIGNED)
        apart -= tl.load(o + j, mask=there, other=0).to(FORMED)[None, :]
    faults = tl.sum((apart * 0 != 0).to(tl.int32), axis=0)
    rank = tl.zeros((ROWS, BLOCK), dtype=tl.int32)
    for i in range(size):
        at = row_start(rows, stride, i, facts, table, ALIGNED)
        y = tl.load(at + j, mask=there, other=0).to(REAL)[None, :]
        rank += ((y < x) | ((y == x) & (tl.cast(i, tl.int32) < k))).to(tl.int32)
    kept = inside & (rank >= trim) & (rank < size - trim)
    x = x.to(tl.float64)
    if origin is not None:
        o = vector_start(origin, ORIGIN, facts, table, ALIGNED)
        x -= tl.load(o + j, mask=there, other=0).to(tl.float64)[None, :]
    # Divided before they are added, and kept between them: so nothing overflows.
    share = 1.0 / tl.cast(size - 2 * trim, tl.float64)
    mean = tl.sum(tl.where(kept, x * share, 0.0), axis=0)
    mean = tl.maximum(mean, tl.min(tl.where(kept, x, float("inf")), axis=0))
    mean = tl.minimum(mean, tl.max(tl.where(kept, x, float("-inf")), axis=0))
    if base is not None:
        b = vector_start(base, BASE, facts, table, ALIGNED)
        mean += tl.load(b + j, mask=there, other=0).to(tl.float64)
    mean = tl.where(faults == 0, mean, float("nan"))
    result = rounded(mean, out.dtype.element_ty)
    if WRITE:
        tl.store(vector_start(out, RESULT, facts, table, ALIGNED) + j, result, mask=there)
    odds = there & (result.to(tl.float64) * 0 != 0)
    tl.store(odd + part, tl.sum(odds.to(tl.int32), axis=0))


def trimmed_mean(
    rows: Rows, trim: int, out: torch.Tensor, base: torch.Tensor | None = None
) -> bool:
    """out [d] = base + the mean of ranks trim … M-1-trim of each column; whether all is finite.

    0 <= 2 trim < M; trim = (M - 1) // 2 is the median. NaN where a number of the column is not
    finite. Added in float64. base and out may be the same.
    """
    return not bool(_averaged(rows, trim, out, base)[1].any())


def write_trimmed_means(
    rows: TabledRows,
    trim: int,
    outs: Sequence[torch.Tensor],
    bases: Sequence[torch.Tensor] | None,
    *,
    rehearse: bool = False,
) -> list[int]:
    """As `trimmed_mean`, a list of tensors for one; the positions of those that are not finite.

    rehearse: nothing is written.
    """
    base = None if bases is None else bases[0]
    layout, odd = _averaged(rows.into(outs, bases), trim, outs[0], base, write=not rehearse)
    return layout.tensors(odd)


def _averaged(
    rows: AnyRows,
    trim: int,
    out: torch.Tensor,
    base: torch.Tensor | None,
    *,
    write: bool = True,
) -> tuple[Layout, torch.Tensor]:
    """(the blocks, how many results of each are not finite)."""
    real = np.float64 if rows.dtype == torch.float64 else np.float32
    by_network = rows.size <= NETWORK_ROWS
    if by_network:
        share = 2 if real is np.float64 else 1
        # A thread reads at most 16 bytes of a row at once.
        of_thread = max(1, min(4, HELD // triton.next_power_of_2(rows.size)) // share)
        held = Tile(1, 32 * WARPS * of_thread, WARPS)
    else:
        held = tile(rows.size, 2048, 16, real, least=8)
    layout = rows.laid_out(held.columns)
    odd = torch.empty(layout.blocks, dtype=torch.int32, device=rows.tensor.device)
    facts = {"ALIGNED": layout.aligned, "WRITE": write}
    kinds = {"FORMED": formed(rows, real), "REAL": REALS[real]}
    results = base, out, odd
    with on_device(rows):
        if by_network:
            network = selection_network(rows.size, trim).reshape(-1).tolist()
            _selected_mean[(layout.blocks,)](
                *layout.sources,
                *results,
                SIZE=rows.size,
                TRIM=trim,
                NETWORK=tuple(network),
                PAIRS=len(network) // 2,
                BLOCK=held.columns,
                num_warps=held.warps,
                **facts,
                **kinds,
            )
        else:
            _trimmed_mean[(layout.blocks,)](
                *layout.sources, rows.size, trim, *results, **held.sizes, **facts, **kinds
            )
    return layout, odd
