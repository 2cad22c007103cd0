"""The bar that fast code has to clear: how many times as fast as plain code it must be.

The ratio of two codes that do the same sums in the same process, taking turns on one thread, best
of many: what slows the machine slows both. A miss is measured again before it counts, and on busy
cores it is not counted but refused; either way it is no pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from threadpoolctl import threadpool_limits

from benchmarks.quiet import Watch, refusal
from benchmarks.timing import Clock, Work, in_turns

ATTEMPTS = 3


class Bar(NamedTuple):
    """The least ratio reference / kernels at one size, and why it stands where it stands."""

    rule: str
    clients: int
    parameters: int
    least: float
    reason: str

    @property
    def subject(self) -> str:
        return f"{self.rule} at {self.clients} x {self.parameters:,}"

    @property
    def against(self) -> str:
        return "the reference"


class TrainingBar(NamedTuple):
    """The least ratio plain loop / ours of one round of a federation (federations.MEASURED)."""

    method: str
    model: str
    least: float
    reason: str

    @property
    def subject(self) -> str:
        return f"a round of {self.method} on {self.model}"

    @property
    def against(self) -> str:
        return "the plain loop"


class DictionaryBar(NamedTuple):
    """The least ratio plain numpy / ours of a rule on dictionaries of small arrays."""

    rule: str
    clients: int = 20
    tensors: int = 200
    numbers: int = 1000
    least: float = 1 / 3
    reason: str = "arrays are looked at once and joined, as numpy's stack does"

    @property
    def subject(self) -> str:
        return (
            f"{self.rule} on {self.clients} dictionaries of {self.tensors} arrays of "
            f"{self.numbers:,} numbers"
        )

    @property
    def against(self) -> str:
        return "plain numpy"


class Verdict(NamedTuple):
    """The best ratio seen; `refused` says why a miss is not counted."""

    ratio: float
    passed: bool
    refused: str | None

    @property
    def word(self) -> str:
        """In a table."""
        return "cleared" if self.passed else "not judged" if self.refused else "missed"

    def sentence(self, bar: Bar | TrainingBar | DictionaryBar) -> str:
        told = f"{bar.subject}: {self.ratio:.2f} times {bar.against}"
        if self.passed:
            return f"{told}, at least {bar.least:.3g} asked"
        if self.refused:
            return f"{told}, {bar.least:.3g} asked, but {self.refused}"
        return (
            f"{told} in the best of {ATTEMPTS} attempts, but {bar.least:.3g} is asked: {bar.reason}"
        )


def judge(
    ours: Work,
    reference: Work,
    least: float,
    budget: float,
    clock: Clock = time.perf_counter,
) -> Verdict:
    """Compare two works; attempts end with the first that clears the bar."""
    best, refused = 0.0, None
    for _ in range(ATTEMPTS):
        watch = Watch()
        fast, slow = in_turns([ours, reference], budget, clock=clock)
        best = max(best, min(slow) / min(fast))
        refused = refusal(watch.others())
        if best >= least:
            return Verdict(best, True, None)
    return Verdict(best, False, refused)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch, the kernels and numpy's products on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)
