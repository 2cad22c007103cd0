"""The rows [M, d] as kernels want them, and the columns shared out over threads.

Columns are cut into parts whose bounds depend on M and d alone; a kernel gives one result per part
and these are added in order. So results do not depend on the number of threads.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch

PART_BYTES = 1 << 23
"""Size of a part: long against the start of a kernel, short against the whole."""

FEW_ROWS = 16
"""About as many streams as a processor prefetches side by side."""


class Rows(NamedTuple):
    """Row k of [size, d] is flat[k * stride : k * stride + d]."""

    flat: np.ndarray
    stride: int
    size: int
    d: int


def as_rows(rows: torch.Tensor) -> Rows:
    """A view of rows [M, d] whose columns lie side by side (see `backends.has_kernels`)."""
    size, d = rows.shape
    stride = rows.stride(0) if size > 1 else d
    flat = rows.detach().as_strided(((size - 1) * stride + d,), (1,))
    return Rows(flat.numpy(), stride, size, d)


def block_width(rows: Rows) -> int:
    """Columns of a block that is read more than once: a multiple of 64.

    Few rows: short pieces, a small part of the first cache, so that the processor's own
    prefetching follows all rows at once. Many rows, too many for it: long pieces of each that
    still fit the second cache.
    """
    if rows.size <= FEW_ROWS:
        return 512 // rows.flat.itemsize
    return max(64, min(512, (1 << 17) // (rows.size + 1) // rows.flat.itemsize // 64 * 64))


def over_parts(rows: Rows, width: int, work: Callable[[int, int], Any]) -> Any:
    """The sum over parts of work(start, stop), run on torch's number of threads; None if d = 0.

    A part is a whole number of blocks of `width` columns.
    """
    part = max(1, PART_BYTES // (rows.flat.itemsize * rows.size * width)) * width
    starts = range(0, rows.d, part)
    results: list[Any] = [None] * len(starts)
    queue, lock = iter(range(len(starts))), threading.Lock()

    def run() -> None:
        while True:
            with lock:
                index = next(queue, None)
            if index is None:
                return
            results[index] = work(starts[index], min(starts[index] + part, rows.d))

    threads = min(torch.get_num_threads(), len(starts))
    if threads <= 1:
        run()
    else:
        with ThreadPoolExecutor(threads - 1) as pool:
            others = [pool.submit(run) for _ in range(threads - 1)]
            run()
            for other in others:
                other.result()
    total = None
    for result in results:
        if result is not None:
            total = result if total is None else total + result
    return total
