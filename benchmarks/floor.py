"""What the hardware alone needs: bandwidth of memory, and the rate of products."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import torch

from benchmarks.timing import Work, finished

MEMORY_BYTES = {"cpu": 800_000_000, "cuda": 1 << 30}
"""Size of the buffer that is read or copied: no cache keeps it."""
SIDES = {"cpu": 1024, "cuda": 8192}
"""Side of the square matrices whose product gives the rate; a GPU is busy with large ones only."""
_PIECE = 1 << 21


@numba.njit(nogil=True, fastmath=True, cache=True)
def _sum(numbers):
    total = np.float32(0)
    for i in range(numbers.size):
        total += numbers[i]
    return total


def memory_work(device: str, size: int | None = None) -> tuple[Work, int]:
    """Return work that moves memory and does nothing else, and the bytes that it moves.

    A CPU reads the buffer on torch's number of threads. A GPU copies it: twice its size is moved.

    Args:
        device: "cpu" or "cuda".
        size: Bytes of the buffer; None: of `MEMORY_BYTES`.
    """
    size = size or MEMORY_BYTES[device]
    if device == "cuda":
        source = torch.ones(size // 4, device=device)
        target = torch.empty_like(source)
        return finished(lambda: target.copy_(source), device), 2 * size
    # Ones, so that every page is memory of its own; untouched pages are all the same one.
    numbers = np.ones(size // 4, np.float32)
    pieces = [numbers[i : i + _PIECE] for i in range(0, numbers.size, _PIECE)]
    pool = ThreadPoolExecutor(torch.get_num_threads())
    return lambda: list(pool.map(_sum, pieces)), numbers.nbytes


def product_work(device: str, precision: str) -> tuple[Work, int]:
    """Return a product of two square matrices, and its additions and multiplications.

    Args:
        device: "cpu" or "cuda".
        precision: A dtype of torch.
    """
    side = SIDES[device]
    generator = torch.Generator(device).manual_seed(0)
    factors = torch.randn(2, side, side, generator=generator, device=device)
    a, b = factors.to(getattr(torch, precision)).unbind()
    out = torch.empty_like(a)
    return finished(lambda: torch.mm(a, b, out=out), device), 2 * side**3
