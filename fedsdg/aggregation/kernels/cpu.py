"""The compiled kernels (numba) on blocks of the CPU: their arguments, and threads.

Columns are cut into parts whose bounds depend on rows and columns alone, and the results of the
parts are added in their order. So results do not depend on the number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsdg.aggregation.kernels import loops
from fedsdg.aggregation.kernels.networks import selection_network
from fedsdg.aggregation.kernels.range import distances_in_range, norms_in_range
from fedsdg.aggregation.rows import Block

STORAGES = {
    torch.float32: loops.FLOAT32,
    torch.float64: loops.FLOAT64,
    torch.bfloat16: loops.BFLOAT16,
    torch.float16: loops.FLOAT16,
}
PART_BYTES = 1 << 23
"""Size of a part: long compared to the start of a kernel, short compared to the whole."""
MOST_SORTED = 1024
"""A network of comparators for more rows takes long to construct."""
LONGEST = 1 << 16
"""Columns of the longest cache block, whose sums in float64 fit the second cache."""
_ZEROS = np.zeros(loops.PIECE)
ZEROS = _ZEROS.ctypes.data
"""The address of `PIECE` zeros."""

Span = tuple[np.ndarray, int, int, int, int]
"""(ends, start, stop, width, storage) of some columns, see `loops`."""


def norms_and_dots(block: Block, coefficients: np.ndarray) -> np.ndarray | None:
    """Return [2, M + 1] norms and dots, as `loops`; None if squares leave float32's range."""
    scale = float(np.abs(coefficients).max(initial=0.0)) or 1.0
    c = (coefficients / scale).astype(_real(block))

    def work(span: Span) -> np.ndarray:
        return loops.norms_and_dots(block.table, span, ZEROS, c)

    return norms_in_range(_sum_over_parts(block, _width(block), work), scale, block)


def distances(block: Block) -> np.ndarray | None:
    """Return [M, M] ||x_i - x_j||^2: exactly symmetric, zero for equal rows; None as above."""
    table, zero = np.ascontiguousarray(block.table[:, 1:]), np.zeros(1, _real(block))
    sums = _sum_over_parts(
        block, 2 * _width(block), lambda span: loops.distances(table, span, zero)
    )
    return distances_in_range(sums[: block.size, : block.size], block)


def weighted_sum(block: Block, weights: np.ndarray, outs: list[Tensor]) -> bool:
    """Write sum_r w_r row r, row 0 being theta_g; return whether all of it is finite."""
    used = np.flatnonzero(weights)
    table, addresses = np.ascontiguousarray(block.table[:, used]), _addresses(outs)
    w, zero = weights[used], np.zeros(1, _real(block))
    width = loops.PIECE if len(used) <= loops.STREAMS else LONGEST

    def work(span: Span) -> float:
        return loops.weighted_sum(table, addresses, span, ZEROS, w, zero)

    return bool(_sum_over_parts(block, width, work, backwards=True) == 0)


def trimmed_mean(block: Block, trim: int, outs: list[Tensor]) -> bool:
    """Write the mean of ranks trim … M-1-trim of every column; return whether all is finite."""
    table, addresses = np.ascontiguousarray(block.table[:, 1:]), _addresses(outs)
    network, zero = selection_network(block.size, trim), np.zeros(1, _real(block))

    def work(span: Span) -> float:
        return loops.trimmed_mean(table, addresses, span, network, trim, zero)

    return bool(_sum_over_parts(block, 2 * _width(block), work) == 0)


def _real(block: Block) -> Any:
    """The dtype in which a kernel computes."""
    return np.float64 if block.dtype == torch.float64 else np.float32


def _width(block: Block) -> int:
    """Columns of a cache block that is read more than once: 512 bytes of a row."""
    return 512 // np.dtype(_real(block)).itemsize


def _addresses(tensors: list[Tensor]) -> np.ndarray:
    return np.array([tensor.data_ptr() for tensor in tensors], dtype=np.int64)


def _sum_over_parts(
    block: Block, width: int, work: Callable[[Span], Any], *, backwards: bool = False
) -> Any:
    """Return the sum over parts of work(span), on torch's number of threads.

    backwards: start with the last columns, which a previous pass has left in the cache.
    """
    d = int(block.ends[-1])
    parts = max(1, -(-block.dtype.itemsize * block.size * d // PART_BYTES))
    part = -(-d // (parts * width)) * width
    storage = STORAGES[block.dtype]
    spans = [(block.ends, s, min(s + part, d), width, storage) for s in range(0, d, part)]
    if backwards:
        spans.reverse()
    threads = min(torch.get_num_threads(), len(spans))
    if threads <= 1:
        results = list(map(work, spans))
    else:
        tasks = [_pool(threads).submit(work, span) for span in spans]
        wait(tasks)  # They read and write memory that the caller may free afterwards.
        results = [task.result() for task in tasks]
    if backwards:
        results.reverse()
    return sum(results)


@lru_cache(maxsize=2)
def _pool(threads: int) -> ThreadPoolExecutor:
    """Return waiting threads: to start them would take longer than a small kernel."""
    return ThreadPoolExecutor(threads, thread_name_prefix="aggregation")


# A forked child has none of its parent's threads.
os.register_at_fork(after_in_child=_pool.cache_clear)
