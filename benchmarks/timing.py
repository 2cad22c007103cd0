"""Seconds of pieces of work that take turns, so that what disturbs one disturbs all."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

Work = Callable[[], Any]


def seconds(work: Work) -> float:
    """Wall seconds of one call; the result is thrown away after the clock has stopped."""
    start = time.perf_counter()
    result = work()
    elapsed = time.perf_counter() - start
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


def in_turns(works: Sequence[Work], budget: float) -> list[list[float]]:
    """Seconds of every work in every turn; as many turns as the budget allows.

    Works that together take less than half of the budget run once before the clock starts to
    count; those that take more than five budgets have one turn, others at least two.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        first = [seconds(work) for work in works]
        times = [[one] for one in first] if 2 * sum(first) > budget else [[] for _ in works]
        least = 1 if sum(first) > 5 * budget else 2
        for _ in range(turns(sum(first), budget, least=least) - len(times[0])):
            for work, own in zip(works, times, strict=True):
                own.append(seconds(work))
        return times
    finally:
        if collecting:
            gc.enable()
