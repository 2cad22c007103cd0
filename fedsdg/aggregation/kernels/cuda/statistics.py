"""Norms, dots with a reference, and squared distances of rows, each in one pass (triton).

Within a program products are formed and added in `real` (float32 unless the rows are float64), at
most `MOST_STEPS` of them in turn; over threads and programs in float64. As on the CPU, a result
that may have left the range of `real` has to be taken again in float64 (`ranges`).
"""

from functools import partial
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from fedsdg.aggregation.kernels import ranges
from fedsdg.aggregation.kernels.cuda.launching import PROGRAMS, REALS, on_device, sent, tile
from fedsdg.aggregation.kernels.cuda.rows import Rows

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


@triton.jit(do_not_specialize=["size", "parts", "steps"])
def _moments(
    rows,
    stride,
    size,
    d,
    origin,
    coefficients,
    partial,
    parts,
    steps,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    PACK: tl.constexpr,
    REAL: tl.constexpr,
):
    """partial[part] [2, size + 1] = squares and dots of the rows, then the square of z.

    A part has the blocks part, part + parts, …: programs that run at once read side by side.
    """
    part = tl.program_id(0)
    k = tl.arange(0, ROWS)
    present = k < size
    c = tl.load(coefficients + k, mask=present, other=0)
    starts = rows + k.to(tl.int64) * stride
    squares = tl.zeros((ROWS, BLOCK // PACK), dtype=REAL)
    dots = tl.zeros((ROWS, BLOCK // PACK), dtype=REAL)
    own = tl.zeros((BLOCK,), dtype=REAL)
    for step in range(steps):
        j = tl.cast(part + step * parts, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = present[:, None] & (j < d)[None, :]
        x = tl.load(starts[:, None] + j[None, :], mask=inside, other=0).to(REAL)
        if origin is not None:
            # Beyond the last row too, where neither c nor the store lets it count.
            x -= tl.load(origin + j, mask=j < d, other=0).to(REAL)[None, :]
        z = tl.sum(x * c[:, None], axis=0)
        squares += _gathered(x * x, PACK)
        dots += _gathered(x * z[None, :], PACK)
        own += z * z
    to = partial + part.to(tl.int64) * 2 * (size + 1)
    tl.store(to + k, tl.sum(squares.to(tl.float64), axis=1), mask=present)
    tl.store(to + size + 1 + k, tl.sum(dots.to(tl.float64), axis=1), mask=present)
    tl.store(to + size, tl.sum(own.to(tl.float64), axis=0))


@triton.jit(do_not_specialize=["size", "parts", "steps"])
def _distances(
    rows,
    stride,
    size,
    d,
    partial,
    parts,
    steps,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
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
    ours = rows + i.to(tl.int64) * stride
    theirs = rows + k.to(tl.int64) * stride
    total = tl.zeros((TILE, TILE), dtype=tl.float64)
    for left in range(part, tl.cdiv(d, BLOCK), parts * steps):
        squares = tl.zeros((TILE, TILE, BLOCK), dtype=REAL)
        for step in range(steps):
            j = tl.cast(left, tl.int64) * BLOCK + tl.arange(0, BLOCK)
            j += tl.cast(step * parts, tl.int64) * BLOCK
            inside = (j < d)[None, :]
            x = tl.load(ours[:, None] + j[None, :], mask=inside & (i < size)[:, None], other=0)
            y = tl.load(theirs[:, None] + j[None, :], mask=inside & (k < size)[:, None], other=0)
            apart = x.to(REAL)[:, None, :] - y.to(REAL)[None, :, :]
            squares += apart * apart
        total += tl.sum(squares, axis=2).to(tl.float64)
    to = partial + part.to(tl.int64) * size * size
    mask = (i < size)[:, None] & (k < size)[None, :]
    tl.store(to + i[:, None] * size + k[None, :], total, mask=mask)


def moments(rows: Rows, coefficients: np.ndarray, real: Any) -> tuple[np.ndarray, np.ndarray]:
    """([M + 1] squared norms of the rows and of z, [M] dots with z), z = sum_k c_k x_k."""
    c = sent(coefficients.astype(real), rows.tensor.device)
    squares, dots = moments_there(rows, c, real).cpu().numpy()
    return squares, dots[:-1]


def moments_there(rows: Rows, coefficients: torch.Tensor, real: Any) -> torch.Tensor:
    """[2, M + 1] float64, where the rows are: the squares, and the dots and a number more."""
    if rows.pack == 1:
        held = tile(rows.size, 2048, 16, real)
    elif rows.size <= 32:
        held = tile(rows.size, 8192, 64, real)
    else:
        held = tile(rows.size, 4096, 32, real)
    device = rows.tensor.device
    blocks = triton.cdiv(rows.d, held.columns)
    steps = max(1, min(MOST_STEPS, blocks // PROGRAMS))
    parts = triton.cdiv(blocks, steps)
    sums = torch.zeros(parts, 2, rows.size + 1, dtype=torch.float64, device=device)
    with on_device(rows):
        _moments[(parts,)](
            rows.tensor,
            rows.stride,
            rows.size,
            rows.d,
            rows.origin,
            coefficients.to(sums.dtype if real is np.float64 else torch.float32),
            sums,
            parts,
            steps,
            PACK=rows.pack,
            REAL=REALS[real],
            **held.sizes,
        )
    return sums.sum(dim=0)


def distances(rows: Rows, real: Any) -> np.ndarray:
    """[M, M] ||x_i - x_j||^2 from differences: exactly symmetric, and zero for equal rows.

    Of the numbers as they lie: the origin is in both and falls out.
    """
    side, columns = (8, 128) if rows.size <= 16 else (16, 32)
    tiles = triton.cdiv(rows.size, side)
    blocks = triton.cdiv(rows.d, columns)
    parts = max(1, min(blocks, 2 * PROGRAMS // (tiles * (tiles + 1))))
    shape = parts, rows.size, rows.size
    sums = torch.zeros(shape, dtype=torch.float64, device=rows.tensor.device)
    with on_device(rows):
        _distances[(tiles, tiles, parts)](
            rows.tensor,
            rows.stride,
            rows.size,
            rows.d,
            sums,
            parts,
            min(PAIRED_STEPS, triton.cdiv(blocks, parts)),
            TILE=side,
            BLOCK=columns,
            REAL=REALS[real],
            num_warps=4,
        )
    upper = np.triu(sums.sum(dim=0).cpu().numpy(), 1)
    return upper + upper.T


def moments_in_range(rows: Rows, squares: np.ndarray, real: Any) -> bool:
    """Whether squares [M + 1] as of `moments`, taken in `real`, are good to its precision."""
    return ranges.moments_in_range(squares, rows.d, real, partial(_vanishes, rows))


def distances_in_range(rows: Rows, found: np.ndarray, real: Any) -> bool:
    """Whether squared distances [M, M] between the rows, taken in `real`, are good to it."""
    return ranges.distances_in_range(found, rows.d, real, partial(_vanishes, rows))


def _vanishes(rows: Rows, k: int, other: int | None) -> bool:
    """Whether x_k is 0 everywhere, or equal to x_other."""
    row = rows.tensor[k]
    if other is not None:
        return torch.equal(row, rows.tensor[other])
    return not row.any() if rows.origin is None else torch.equal(row, rows.origin)
