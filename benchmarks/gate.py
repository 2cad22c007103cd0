"""The bar that fast code has to clear: how many times as fast as plain code it must be.

The ratio of two codes that do the same sums in the same process, taking turns on one thread, best
of many: what slows the machine slows both. A miss is measured again before it counts, and on busy
cores it is not counted but refused; either way it is no pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from benchmarks.quiet import Watch, refusal
from benchmarks.timing import Work, in_turns

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


class Verdict(NamedTuple):
    """The best ratio seen; `refused` says why a miss is not counted."""

    ratio: float
    passed: bool
    refused: str | None

    @property
    def word(self) -> str:
        """In a table."""
        return "cleared" if self.passed else "not judged" if self.refused else "missed"

    def sentence(self, bar: Bar | TrainingBar) -> str:
        told = f"{bar.subject}: {self.ratio:.2f} times {bar.against}"
        if self.passed:
            return f"{told}, at least {bar.least:g} asked"
        if self.refused:
            return f"{told}, {bar.least:g} asked, but {self.refused}"
        return (
            f"{told} in the best of {ATTEMPTS} attempts, but {bar.least:g} is asked: {bar.reason}"
        )


def judge(ours: Work, reference: Work, least: float, budget: float) -> Verdict:
    """Compare two works; attempts end with the first that clears the bar."""
    best, refused = 0.0, None
    for _ in range(ATTEMPTS):
        watch = Watch()
        fast, slow = in_turns([ours, reference], budget)
        best = max(best, min(slow) / min(fast))
        refused = refusal(watch.others())
        if best >= least:
            return Verdict(best, True, None)
    return Verdict(best, False, refused)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch and the kernels on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
