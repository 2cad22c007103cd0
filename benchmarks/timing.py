"""Measure pieces of work that take turns, so that a disturbance of the machine meets all alike."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import psutil
import torch
from threadpoolctl import threadpool_limits

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

Work = Callable[[], object]
OURS = "ours"
"""The code of this package among the codes that are compared."""
LIMIT = "limit"
"""Among the codes, the time that the hardware alone needs: see `floor`."""
MOST_TURNS = 25


@dataclass
class Timings:
    """What every code took, in turns."""

    seconds: dict[str, list[float]]
    """by code; a code that is much slower has one turn, all others have equally many"""
    busy_cores: float = 0.0
    """cores that other programs used meanwhile, on average"""

    def ratio(self, code: str) -> float:
        """Return the median over the turns of seconds of a code over seconds of ours."""
        turns = zip(self.seconds[code], self.seconds[OURS], strict=False)
        return median(theirs / ours for theirs, ours in turns)


def seconds(work: Work, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of one call; its result is freed after the clock has stopped."""
    start = clock()
    result = work()
    elapsed = clock() - start
    del result
    return elapsed


def take_turns(
    benchmark: BenchmarkFixture,
    works: Mapping[str, Work],
    budget: float,
    *,
    scale: float = 1.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Timings:
    """Measure works in turns, after one call of each that is not counted.

    Args:
        benchmark: The fixture of pytest-benchmark, which keeps the turns of ours.
        works: By code, `OURS` among them.
        budget: Seconds for all turns, of which there are 2 to `MOST_TURNS`. A code that takes more
            than half of it has no turn but its first call.
        scale: The seconds of `LIMIT` are multiplied by it.
        clock: What time is measured by.

    Returns:
        The seconds of all turns.
    """
    works[OURS]()  # Compiles, and fills caches.
    first = {code: seconds(work, clock) for code, work in works.items()}
    slow = [code for code in works if code != OURS and first[code] > budget / 2]
    others = [code for code in works if code != OURS and code not in slow]
    a_turn = sum(first[code] for code in works if code not in slow)
    turns = max(2, min(MOST_TURNS, int(budget / max(a_turn, 1e-9))))
    times: dict[str, list[float]] = {code: [] for code in works}

    def take_others() -> None:
        for code in others:
            times[code].append(seconds(works[code], clock))

    def take_ours() -> None:
        times[OURS].append(seconds(works[OURS], clock))

    other_programs = OtherPrograms()
    benchmark.pedantic(take_ours, setup=take_others, rounds=turns)
    for code in slow:
        times[code].append(first[code])
    if LIMIT in times:
        times[LIMIT] = [scale * each for each in times[LIMIT]]
    return Timings(times, other_programs.cores())


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch, the package's kernels and numpy's products on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def finished(work: Work, device: str) -> Work:
    """Return work that, on a GPU, waits for the end of what it has started."""
    if device == "cpu":
        return work

    def wait_too() -> None:
        work()
        torch.cuda.synchronize()

    return wait_too


def allowed_cores() -> set[int]:
    """Return the processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


class OtherPrograms:
    """Measures, from its creation on, how busy other programs keep this process's cores."""

    def __init__(self) -> None:
        """Begin."""
        psutil.cpu_percent(percpu=True)  # Later calls tell what has been since this one.
        self._begun = time.perf_counter()
        self._own = sum(os.times()[:4])

    def cores(self) -> float:
        """Return the mean number of cores in use by others; may be called once."""
        percent = psutil.cpu_percent(percpu=True)
        busy = sum(percent[core] for core in allowed_cores()) / 100
        own = (sum(os.times()[:4]) - self._own) / (time.perf_counter() - self._begun)
        return max(0.0, busy - own)
