"""The memory's speed: a bare read, taken before and after every run that is measured against it.

The rate of a machine's memory wanders (by a third within minutes on shared machines), so a kernel
is compared with the reads next to it in time, and the median over such pairs counts.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import torch

from benchmarks.timing import seconds

READ_NUMBERS = 200_000_000
"""Float32 numbers of a bare read: 800 MB, which no cache keeps."""

_PIECE = 1 << 21


@numba.njit(nogil=True, fastmath=True, cache=True)
def _sum(numbers):
    total = np.float32(0)
    for i in range(numbers.size):
        total += numbers[i]
    return total


class Memory:
    """A buffer to read, and the rates at which it was read."""

    def __init__(self, numbers: int = READ_NUMBERS) -> None:
        # Written, so that every page is memory of its own (untouched pages are all one).
        self.buffer = np.ones(numbers, np.float32)
        self.rates: list[float] = []
        self._read()

    def read(self) -> float:
        """Bytes a second of one read of the whole buffer, on torch's number of threads."""
        self.rates.append(self.buffer.nbytes / seconds(self._read))
        return self.rates[-1]

    def _read(self) -> None:
        pieces = [self.buffer[i : i + _PIECE] for i in range(0, self.buffer.size, _PIECE)]
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            list(pool.map(_sum, pieces))


def paired(least_bytes: int, times: list[float], rates: list[float]) -> float:
    """Median of floor / time; rates[i] and rates[i + 1] were read around times[i]."""
    around = (np.array(rates[:-1]) + np.array(rates[1:])) / 2
    return float(np.median(least_bytes / around / np.array(times)))
