"""Sums over columns of the updates, each a function of a block, and the steps on a block.

Here is the plain reference, in float64 on any device. Large blocks go to compiled kernels, which
add products of float32 numbers in float32 within pieces of at most 512 columns. Norms, products and
distances have about 12 correct digits from the reference and at least 5 from the kernels.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsdg.lazy import Tensor, torch

if TYPE_CHECKING:
    from fedsdg.aggregation.rows import Block

BACKENDS = ("auto", "torch", "numba", "triton")
VARIABLE = "FEDSDG_AGGREGATION_BACKEND"
KERNEL_NUMBERS = 1_000_000
"""Blocks of at least so many numbers go to kernels; smaller ones never wait for a compiler."""
MOST_TRITON_ROWS = 1024
"""A program on a GPU holds one number of every row in registers."""
CHUNK_NUMBERS = 1 << 18
"""Numbers that are copied to float64 at a time."""

Piece = tuple[int, slice]
"""Some columns of tensor t of a block."""


def kernels(block: Block) -> Any:
    """Return the module of kernels for a block, or None: the reference."""
    chosen = os.environ.get(VARIABLE) or "auto"
    if chosen not in BACKENDS:
        raise ValueError(f"backend {chosen!r}: use one of {', '.join(BACKENDS)}")
    if chosen == "torch" or (chosen == "auto" and block.size * block.ends[-1] < KERNEL_NUMBERS):
        return None
    on_gpu = block.first.device.type == "cuda"
    if chosen == "triton" or (chosen == "auto" and on_gpu):
        return _triton(on_gpu) if block.size <= MOST_TRITON_ROWS else None
    if block.first.device.type != "cpu":
        return None
    from fedsdg.aggregation.kernels import cpu

    return cpu


def norms_and_dots(block: Block, coefficients: np.ndarray) -> np.ndarray:
    """Return [2, M + 1]: squared norms of the rows and of z; dots of the rows with z, and rounding.

    z = sum_k c_k x_k for coefficients c [M]; rounding = (1/2 eps ||theta_g||)^2.
    """
    sums = _by_kernel("norms_and_dots", block, coefficients)
    if sums is None:
        c = torch.as_tensor(coefficients, dtype=torch.float64, device=block.first.device)
        total = torch.zeros(2, block.size + 1, dtype=torch.float64, device=block.first.device)
        for chunk in chunks(block):
            z = c @ chunk
            total[0, :-1] += chunk.square().sum(1)
            total[1, :-1] += chunk @ z
            total[0, -1] += z @ z
        for _, columns in gathered(block, [0]) if block.formed else ():
            total[1, -1] += columns.double().square().sum()
        sums = total.cpu().numpy()
    sums[1, -1] *= (torch.finfo(block.dtype).eps / 2) ** 2
    return sums


def distances(block: Block) -> np.ndarray:
    """Return [M, M] ||x_i - x_j||^2, from differences: exactly zero for equal rows."""
    squares = _by_kernel("distances", block)
    if squares is not None:
        return squares
    total = torch.zeros(block.size, block.size, dtype=torch.float64, device=block.first.device)
    for chunk in chunks(block, subtract=False):
        pairs = torch.cdist(chunk, chunk, compute_mode="donot_use_mm_for_euclid_dist")
        total += pairs.square()
    return ((total + total.T) / 2).cpu().numpy()


def gram(block: Block, centre: np.ndarray) -> np.ndarray:
    """Return [M, M] <y_k, y_l> of y_k = x_k - sum_l c_l x_l, in float64; c sums to 1."""
    c = torch.as_tensor(centre, dtype=torch.float64, device=block.first.device)
    total = torch.zeros(block.size, block.size, dtype=torch.float64, device=block.first.device)
    for chunk in chunks(block, subtract=False):
        centred = chunk - c @ chunk
        total += centred @ centred.T
    return ((total + total.T) / 2).cpu().numpy()


def nonfinite(block: Block) -> np.ndarray:
    """Return [T, M + 1] how many numbers of theta_g and of each row are not finite, by tensor."""
    return np.array(
        [
            [0 if t is None or all_finite(t) else int((~torch.isfinite(t)).sum()) for t in row]
            for row in block.tensors
        ]
    )


def weighted_sum(block: Block, weights: np.ndarray, outs: list[Tensor]) -> bool:
    """Write w_0 theta_g + sum_k w_k theta_k, added in float64; return whether all is finite.

    Args:
        block: The columns.
        weights: [1 + M] w.
        outs: [T] contiguous tensors, which may be theta_g's or a client's.
    """
    fast = kernels(block)
    if fast and _same_dtype(block, outs):
        return bool(fast.weighted_sum(block, weights, outs))
    used, finite = np.flatnonzero(weights), True
    w = torch.as_tensor(weights[used], device=block.first.device)
    for pieces, columns in gathered(block, used.tolist() or [1]):
        sums = w @ columns.double() if len(used) else torch.zeros_like(columns[0]).double()
        finite &= _write(pieces, outs, sums)
    return finite


def trimmed_mean(block: Block, trim: int, outs: list[Tensor]) -> bool:
    """Write the mean of the theta_k of rank trim … M-1-trim; return whether all is finite.

    A column with a number that is not finite becomes NaN.
    """
    fast = kernels(block)
    if fast and _same_dtype(block, outs) and block.size <= fast.MOST_SORTED:
        return bool(fast.trimmed_mean(block, trim, outs))
    count, finite = block.size - 2 * trim, True
    for pieces, columns in gathered(block, range(1, block.size + 1)):
        # NaN is sorted to the end, infinity to either end.
        ordered = columns.sort(dim=0).values.double()
        # Divided before they are added, so that nothing overflows.
        mean = (ordered[trim : trim + count] / count).sum(dim=0)
        fine = torch.isfinite(ordered[0]) & torch.isfinite(ordered[-1])
        finite &= _write(pieces, outs, mean.masked_fill_(~fine, torch.nan))
    return finite


def gathered(block: Block, rows: Sequence[int]) -> Iterator[tuple[list[Piece], Tensor]]:
    """Yield copies [R, n] of a few columns of some rows at a time, and where these lie.

    Args:
        block: The columns; those of many small tensors are copied together.
        rows: R positions, 0 for theta_g and 1 + k for client k.
    """
    # 64 times as many on a GPU, which takes longer to start work than to do it.
    width = max(256, (CHUNK_NUMBERS << 6 * block.first.is_cuda) // len(rows))
    pieces: list[Piece] = []
    filled = 0
    for t, numel in enumerate(np.diff(block.ends, prepend=0).tolist()):
        for start in range(0, numel, width):
            stop = min(start + width, numel)
            if filled + stop - start > width:
                yield pieces, _joined(block, rows, pieces)
                pieces, filled = [], 0
            pieces.append((t, slice(start, stop)))
            filled += stop - start
    if pieces:
        yield pieces, _joined(block, rows, pieces)


def chunks(block: Block, *, subtract: bool = True) -> Iterator[Tensor]:
    """Yield [M, n] float64 columns of x_k, or without `subtract` of theta_k."""
    subtract = subtract and block.formed
    for _, columns in gathered(block, range(not subtract, block.size + 1)):
        wide = columns.double()
        yield wide[1:] - wide[0] if subtract else wide


def all_finite(numbers: Tensor) -> bool:
    """Return whether no number is NaN or infinite."""
    if not numbers.numel():
        return True
    # Minimum and maximum propagate NaN and infinity, and unlike isfinite need no temporary.
    return bool(torch.isfinite(torch.stack(torch.aminmax(numbers))).all())


def _by_kernel(function: str, block: Block, *arguments: np.ndarray) -> Any:
    """Return what a kernel does; None without kernels, or if float32 has no room for squares."""
    fast = kernels(block)
    return None if fast is None else getattr(fast, function)(block, *arguments)


def _triton(on_gpu: bool) -> Any:
    if find_spec("triton") is None:
        if on_gpu:
            return None
        raise RuntimeError("backend 'triton': triton is not installed; pip install triton (Linux)")
    from fedsdg.aggregation.kernels import cuda

    if not on_gpu and not cuda.INTERPRETED:
        raise RuntimeError(
            "backend 'triton': the updates are not on a CUDA device; move them there, or set "
            "TRITON_INTERPRET=1 before Python starts (slow)"
        )
    return cuda


def _joined(block: Block, rows: Sequence[int], pieces: list[Piece]) -> Tensor:
    tensors = [
        [block.tensors[t][k].view(-1)[part] for t, part in pieces]  # type: ignore[union-attr]
        for k in rows
    ]
    return torch.stack([torch.cat(parts) if len(parts) > 1 else parts[0] for parts in tensors])


def _write(pieces: list[Piece], outs: list[Tensor], values: Tensor) -> bool:
    parts = values.split([part.stop - part.start for _, part in pieces])
    targets = [outs[t].view(-1)[columns] for t, columns in pieces]
    for target, part in zip(targets, parts, strict=True):
        target.copy_(part)
    rounded = (target for target in targets if target.dtype != values.dtype)
    return all_finite(values) and all(map(all_finite, rounded))


def _same_dtype(block: Block, outs: list[Tensor]) -> bool:
    return all(out.dtype == block.dtype for out in outs)
