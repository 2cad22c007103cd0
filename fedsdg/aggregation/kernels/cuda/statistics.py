"""Norms, dots with a reference, and squared distances of rows, each in one pass (triton).

Within a program products are formed and added in `real` (float32 unless the rows are float64), at
most `MOST_STEPS` of them in turn; over threads and programs in float64. As on the CPU, a result
that may have left the range of `real` has to be taken again in float64 (`statistics.in_range`).
"""

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from fedsdg.aggregation.kernels.cuda.launching import (
    PROGRAMS,
    REALS,
    column_stride,
    on_device,
    pack_of,
    tile,
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
            o = tl.load(origin + j, mask=j < d, other=0).to(REAL)
            x = tl.where(inside, x - o[None, :], 0.0)
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


def moments(
    rows: torch.Tensor,
    coefficients: np.ndarray,
    real: Any,
    origin: torch.Tensor | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """([M + 1] squared norms of the rows and of z, [M] dots with z), z = sum_k c_k x_k.

    x_k is row k, less the origin [d] if one is given; real: np.float32 or np.float64.
    """
    size, d = rows.shape
    pack = pack_of(rows)
    if pack == 1:
        held = tile(size, 2048, 16, real)
    else:
        held = tile(size, 8192, 64, real) if size <= 32 else tile(size, 4096, 32, real)
    c = torch.as_tensor(coefficients.astype(real), device=rows.device)
    blocks = triton.cdiv(d, held.columns)
    steps = max(1, min(MOST_STEPS, blocks // PROGRAMS))
    parts = triton.cdiv(blocks, steps)
    partial = torch.zeros(parts, 2, size + 1, dtype=torch.float64, device=rows.device)
    with on_device(rows):
        _moments[(parts,)](
            rows.detach(),
            column_stride(rows),
            size,
            d,
            origin,
            c,
            partial,
            parts,
            steps,
            PACK=pack,
            REAL=REALS[real],
            **held.sizes,
        )
    squares, dots = partial.sum(dim=0).cpu().numpy()
    return squares, dots[:-1]


def distances(rows: torch.Tensor, real: Any) -> np.ndarray:
    """[M, M] ||x_i - x_j||^2 from differences: exactly symmetric, and zero for equal rows."""
    size, d = rows.shape
    side, columns = (8, 128) if size <= 16 else (16, 32)
    tiles = triton.cdiv(size, side)
    blocks = triton.cdiv(d, columns)
    parts = max(1, min(blocks, 2 * PROGRAMS // (tiles * (tiles + 1))))
    partial = torch.zeros(parts, size, size, dtype=torch.float64, device=rows.device)
    with on_device(rows):
        _distances[(tiles, tiles, parts)](
            rows.detach(),
            column_stride(rows),
            size,
            d,
            partial,
            parts,
            min(PAIRED_STEPS, triton.cdiv(blocks, parts)),
            TILE=side,
            BLOCK=columns,
            REAL=REALS[real],
            num_warps=4,
        )
    upper = np.triu(partial.sum(dim=0).cpu().numpy(), 1)
    return upper + upper.T
