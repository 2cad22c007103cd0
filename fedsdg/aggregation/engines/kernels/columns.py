"""The rows x_1 … x_M as kernels want them, and their columns shared out over threads.

Columns are cut into parts whose bounds depend on M, d and the storage alone; a kernel gives one
result per part and these are added in order. So results do not depend on the number of threads.
"""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from fedsdg.aggregation.engines.kernels import loops

PART_BYTES = 1 << 22
"""Size of a part: long against the start of a kernel, short against the whole."""

FEW_ROWS = loops.FEW_ROWS

LONGEST_BLOCK = 16384
"""Columns of the longest block of any kernel."""

STORAGES = {
    torch.float32: loops.FLOAT32,
    torch.float64: loops.FLOAT64,
    torch.bfloat16: loops.BFLOAT16,
    torch.float16: loops.FLOAT16,
}

# Bits that mean 0 in every storage.
_ZEROS = np.zeros(LONGEST_BLOCK)


class Rows(NamedTuple):
    """x_k = the d numbers at addresses[k], less those at the origin if there is one."""

    addresses: np.ndarray
    """[M] int64."""
    origin: int
    """An address, or 0: none."""
    d: int
    storage: torch.dtype
    """Of what lies at the addresses."""
    dtype: torch.dtype
    """Of x_k: differences are rounded to it."""
    owners: tuple[torch.Tensor, ...]
    """What must live as long as the addresses are used."""

    @property
    def size(self) -> int:
        return len(self.addresses)

    @property
    def source(self) -> tuple[np.ndarray, int, int, int, int]:
        """As `loops` wants them."""
        wide = int(self.dtype == torch.float64)
        return self.addresses, self.origin, STORAGES[self.storage], wide, _ZEROS.ctypes.data

    def lie_as(self, real: Any) -> bool:
        """Whether kernels in `real` can use the numbers where they lie."""
        kept = {torch.float32: np.float32, torch.float64: np.float64}.get(self.storage)
        return self.origin == 0 and kept is real


def as_rows(rows: torch.Tensor) -> Rows:
    """The rows of a tensor [M, d]; the columns of each lie side by side, the rows anywhere."""
    size, d = rows.shape
    step = rows.stride(0) * rows.element_size()
    addresses = rows.data_ptr() + step * np.arange(size, dtype=np.int64)
    return Rows(addresses, 0, d, rows.dtype, rows.dtype, (rows,))


def parameter_rows(
    clients: Sequence[torch.Tensor],
    origin: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Rows:
    """clients[k] - origin, never formed as a whole.

    clients: M >= 1 tensors of d numbers each, contiguous, of one dtype, on the CPU; origin: one
    more like them. dtype: of the differences, torch.float32 or torch.float64; float64 whatever is
    said for tensors of float64.
    """
    first = clients[0]
    addresses = np.array([tensor.data_ptr() for tensor in clients], dtype=np.int64)
    owners = (*clients, *(() if origin is None else (origin,)))
    dtype = torch.float64 if first.dtype == torch.float64 else dtype
    start = 0 if origin is None else origin.data_ptr()
    return Rows(addresses, start, first.numel(), first.dtype, dtype, owners)


def block_width(rows: Rows, real: Any) -> int:
    """Columns of a block that is read more than once: a multiple of 64.

    Few rows: short pieces, a small part of the first cache, so that the processor's own
    prefetching follows all rows at once. Many rows, too many for it: long pieces of each that
    still fit the second cache.
    """
    itemsize = np.dtype(real).itemsize
    if rows.size <= FEW_ROWS:
        return 512 // itemsize
    return max(64, min(512, (1 << 17) // (rows.size + 1) // itemsize // 64 * 64))


def laid_out(
    rows: Rows, real: Any, width: int, slots: Sequence[int] | np.ndarray
) -> tuple[np.ndarray, np.ndarray, int]:
    """(buffer, places, step) for a kernel (see `loops`); slots: where in the buffer each row is."""
    if rows.lie_as(real):
        return np.empty(0, real), rows.addresses, np.dtype(real).itemsize
    buffer = np.empty((max(slots) + 1) * width, real)
    return buffer, buffer.ctypes.data + buffer.itemsize * width * np.asarray(slots), 0


def over_parts(
    rows: Rows, width: int, work: Callable[[int, int], Any], *, backwards: bool = False
) -> Any:
    """The sum over parts of work(start, stop), run on torch's number of threads; None if d = 0.

    A part is a whole number of blocks of `width` columns. They are added in order of the columns,
    also if they are done backwards: last columns, which a pass before has left in the cache, first.
    """
    parts = -(-rows.storage.itemsize * rows.size * rows.d // PART_BYTES)
    part = -(-rows.d // (max(parts, 1) * width)) * width
    starts = range(0, rows.d, max(part, 1))
    results: list[Any] = [None] * len(starts)
    order = reversed(range(len(starts))) if backwards else iter(range(len(starts)))
    lock = threading.Lock()

    def run() -> None:
        while True:
            with lock:
                index = next(order, None)
            if index is None:
                return
            results[index] = work(starts[index], min(starts[index] + part, rows.d))

    threads = min(torch.get_num_threads(), len(starts))
    if threads <= 1:
        run()
    else:
        others = [_pool(threads - 1).submit(run) for _ in range(threads - 1)]
        try:
            run()
        finally:  # They write where the caller may read or free next.
            wait(others)
        for other in others:
            other.result()
    total = None
    for result in results:
        if result is not None:
            total = result if total is None else total + result
    return total


@lru_cache(maxsize=2)
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that wait for the next call: to start them takes longer than a small kernel."""
    return ThreadPoolExecutor(threads, thread_name_prefix="aggregation")


if hasattr(os, "register_at_fork"):  # A child has none of its parent's threads.
    os.register_at_fork(after_in_child=_pool.cache_clear)
