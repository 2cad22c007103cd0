"""Seconds of pieces of work that take turns, so that what disturbs one disturbs all."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

Work = Callable[[], Any]
Clock = Callable[[], float]


def seconds(work: Work, clock: Clock = time.perf_counter) -> float:
    """Seconds of one call by a clock; the result is thrown away after the clock has stopped."""
    start = clock()
    result = work()
    elapsed = clock() - start
    del result
    return elapsed


def finished(work: Work, device: str) -> Work:
    """The work, and on a GPU the end of all that it has only begun."""
    if device == "cpu":
        return work

    def to_the_end() -> None:
        work()
        torch.cuda.synchronize()

    return to_the_end


def turns(first: float, budget: float, *, least: int = 1, most: int = 25) -> int:
    """How often work that took `first` seconds fits into a budget of seconds."""
    return max(least, min(most, int(budget / max(first, 1e-9))))


def in_turns(
    works: Sequence[Work],
    budget: float,
    benchmark: BenchmarkFixture | None = None,
    clock: Clock = time.perf_counter,
) -> list[list[float]]:
    """Seconds of every work in every turn; as many turns as the budget allows.

    Works that together take less than half of the budget run once before the clock starts to
    count; those that take more than five budgets have one turn, others at least two.
    ``benchmark``, pytest-benchmark's fixture, keeps the turns of the first work; the others have
    theirs before it.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        first = [seconds(work, clock) for work in works]
        times = [[one] for one in first] if 2 * sum(first) > budget else [[] for _ in works]
        least = 1 if sum(first) > 5 * budget else 2
        pairs = list(zip(works, times, strict=True))

        def take(those: Sequence[tuple[Work, list[float]]]) -> None:
            for work, own in those:
                own.append(seconds(work, clock))

        left = turns(sum(first), budget, least=least) - len(times[0])
        if benchmark is not None:
            benchmark.pedantic(
                lambda: take(pairs[:1]), setup=lambda: take(pairs[1:]), rounds=max(1, left)
            )
            return times
        for _ in range(left):
            take(pairs)
        return times
    finally:
        if collecting:
            gc.enable()
