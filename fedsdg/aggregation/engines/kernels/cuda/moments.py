"""Norms, dots with a reference, and squared distances of rows, each in one pass (triton).

Within a program products are formed and added in `real` (float32 unless the rows are float64), at
most `MOST_STEPS` of them in turn; over threads and programs in float64. As on the CPU, a result
that may have left the range of `real` has to be taken again in float64 (`ranges`).
"""

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from fedsdg.aggregation.engines.kernels import ranges
from fedsdg.aggregation.engines.kernels.cuda.launching import (
    PROGRAMS,
    REALS,
    AnyRows,
    formed,
    on_device,
    sent,
    tile,
)
from fedsdg.aggregation.engines.kernels.cuda.places import (
    ORIGIN,
    columns_of,
    row_starts,
    vector_start,
)

MOST_STEPS = 32
"""So many blocks of columns a program takes one after another, at most."""

PAIRED_STEPS = 64
"""So many squares of differences are added in `real` before they go into the float64 total."""


@triton.jit
def _gathered(x, PACK: tl.constexpr):
    """[ROWS, BLOCK] to [ROWS, BLOCK / PACK]: the neighbours that a thread reads at once, added."""
    ROWS: tl.constexpr = x.shape[0]
    LANES: tl.constexpr = x.shape[1] // PACK
    return tl.sum(tl.reshape(x, (ROWS, LANES, PACK)), axis=2) if PACK > 1 else x


@triton.jit(do_not_specialize=["blocks", "size", "parts", "steps"])
def _moments(
    rows,
    stride,
    d,
    origin,
    table,
    places,
    blocks,
    size,
    coefficients,
    partial,
    parts,
    steps,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    PACK: tl.constexpr,
    ALIGNED: tl.constexpr,
    FORMED: tl.constexpr,
    REAL: tl.constexpr,
):
    """partial[part] [2, size + 1] = squares and dots of the rows, then the square of z.

    A part has the blocks part, part + parts, …: programs that run at once read side by side.
    """
    part = tl.program_id(0)
    k = tl.arange(0, ROWS)
    present = k < size
    c = tl.load(coefficients + k, mask=present, other=0)
    squares = tl.zeros((ROWS, BLOCK // PACK), dtype=REAL)
    dots = tl.zeros((ROWS, BLOCK // PACK), dtype=REAL)
    own = tl.zeros((BLOCK,), dtype=REAL)
    for step in range(steps):
        block = part + step * parts
        facts, j, there = columns_of(block, d, size, table, places, blocks, BLOCK, ALIGNED)
        starts = row_starts(rows, stride, k, present, facts, table, ALIGNED)
        inside = present[:, None] & there[None, :]
        x = tl.load(starts[:, None] + j[None, :], mask=inside, other=0).to(FORMED)
        if origin is not None:
            # Beyond the last row too, where neither c nor the store lets it count.
            o = vector_start(origin, ORIGIN, facts, table, ALIGNED)
            x -= tl.load(o + j, mask=there, other=0).to(FORMED)[None, :]
        x = x.to(REAL)
        z = tl.sum(x * c[:, None], axis=0)
        squares += _gathered(x * x, PACK)
        dots += _gathered(x * z[None, :], PACK)
        own += z * z
    to = partial + part.to(tl.int64) * 2 * (size + 1)
    tl.store(to + k, tl.sum(squares.to(tl.float64), axis=1), mask=present)
    tl.store(to + size + 1 + k, tl.sum(dots.to(tl.float64), axis=1), mask=present)
    tl.store(to + size, tl.sum(own.to(tl.float64), axis=0))


@triton.jit(do_not_specialize=["blocks", "size", "parts", "steps"])
def _distances(
    rows,
    stride,
    d,
    origin,
    table,
    places,
    blocks,
    size,
    partial,
    parts,
    steps,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr,
    REAL: tl.constexpr,
):
    """partial[part] [size, size] = squared distances of TILE rows from TILE rows.

    A thread holds a column of many pairs, so that each number it reads serves TILE differences.
    """
    first, second = tl.program_id(0), tl.program_id(1)
    part = tl.program_id(2)
    if first > second:
        return
    i = first * TILE + tl.arange(0, TILE)
    k = second * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), dtype=tl.float64)
    for left in range(part, blocks, parts * steps):
        squares = tl.zeros((TILE, TILE, BLOCK), dtype=REAL)
        for step in range(steps):
            block = left + step * parts
            facts, j, there = columns_of(block, d, size, table, places, blocks, BLOCK, ALIGNED)
            ours = row_starts(rows, stride, i, i < size, facts, table, ALIGNED)
            theirs = row_starts(rows, stride, k, k < size, facts, table, ALIGNED)
            inside = there[None, :]
            x = tl.load(ours[:, None] + j[None, :], mask=inside & (i < size)[:, None], other=0)
            y = tl.load(theirs[:, None] + j[None, :], mask=inside & (k < size)[:, None], other=0)
            apart = x.to(REAL)[:, None, :] - y.to(REAL)[None, :, :]
            squares += apart * apart
        total += tl.sum(squares, axis=2).to(tl.float64)
    to = partial + part.to(tl.int64) * size * size
    mask = (i < size)[:, None] & (k < size)[None, :]
    tl.store(to + i[:, None] * size + k[None, :], total, mask=mask)


def moments(rows: AnyRows, coefficients: np.ndarray, real: Any) -> tuple[np.ndarray, np.ndarray]:
    """([M + 1] squared norms of the rows and of z, [M] dots with z), z = sum_k c_k x_k."""
    c = sent(coefficients.astype(real), rows.tensor.device)
    squares, dots = moments_there(rows, c, real).cpu().numpy()
    return squares, dots[:-1]


def moments_there(rows: AnyRows, coefficients: torch.Tensor, real: Any) -> torch.Tensor:
    """[2, M + 1] float64, where the rows are: the squares, and the dots and a number more."""
    if rows.pack == 1:
        held = tile(rows.size, 2048, 16, real)
    elif rows.size <= 32:
        held = tile(rows.size, 8192, 64, real)
    else:
        held = tile(rows.size, 4096, 32, real)
    device, layout = rows.tensor.device, rows.laid_out(held.columns)
    steps = max(1, min(MOST_STEPS, layout.blocks // PROGRAMS))
    parts = triton.cdiv(layout.blocks, steps)
    sums = torch.zeros(parts, 2, rows.size + 1, dtype=torch.float64, device=device)
    with on_device(rows):
        _moments[(parts,)](
            *layout.sources,
            rows.size,
            coefficients.to(sums.dtype if real is np.float64 else torch.float32),
            sums,
            parts,
            steps,
            PACK=rows.pack,
            ALIGNED=layout.aligned,
            FORMED=formed(rows, real),
            REAL=REALS[real],
            **held.sizes,
        )
    return sums.sum(dim=0)


def distances(rows: AnyRows, real: Any) -> np.ndarray:
    """[M, M] ||x_i - x_j||^2 from differences: exactly symmetric, and zero for equal rows.

    Of the numbers as they lie: the origin is in both and falls out.
    """
    side, columns = (8, 128) if rows.size <= 16 else (16, 32)
    tiles = triton.cdiv(rows.size, side)
    layout = rows.laid_out(columns)
    parts = max(1, min(layout.blocks, 2 * PROGRAMS // (tiles * (tiles + 1))))
    shape = parts, rows.size, rows.size
    sums = torch.zeros(shape, dtype=torch.float64, device=rows.tensor.device)
    with on_device(rows):
        _distances[(tiles, tiles, parts)](
            *layout.sources,
            rows.size,
            sums,
            parts,
            min(PAIRED_STEPS, triton.cdiv(layout.blocks, parts)),
            TILE=side,
            BLOCK=columns,
            ALIGNED=layout.aligned,
            REAL=REALS[real],
            num_warps=4,
        )
    upper = np.triu(sums.sum(dim=0).cpu().numpy(), 1)
    return upper + upper.T


def moments_in_range(rows: AnyRows, squares: np.ndarray, real: Any) -> bool:
    """Whether squares [M + 1] as of `moments`, taken in `real`, are good to its precision."""
    return ranges.moments_in_range(squares, rows.d, real, rows.vanishes)


def distances_in_range(rows: AnyRows, found: np.ndarray, real: Any) -> bool:
    """Whether squared distances [M, M] between the rows, taken in `real`, are good to it."""
    return ranges.distances_in_range(found, rows.d, real, rows.vanishes)
