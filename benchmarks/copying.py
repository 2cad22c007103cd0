"""How fast updates are aggregated, against a copy in the memory that holds them.

A copy, taken before and after every single run, says what the memory delivers: twice its size over
its time. The floor is the time for 4 d (passes M + 1) bytes at that rate: the updates as often as
they have to be read, and the step, written once. (A CPU has to fetch a line before it writes one,
a GPU does not.) Ratios are medians over neighbours in time. The kernels behind them stand beside
the whole rules, without what the CPU adds (checks, a few small launches).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsdg.aggregation.api import aggregate
from fedsdg.aggregation.engines.backends import backend, kernels_for
from fedsdg.aggregation.engines.statistics import measure, weighted_sum
from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.geometric_median import GeometricMedian
from fedsdg.aggregation.rules.krum import Krum
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.median import CoordinateMedian
from fedsdg.aggregation.types import Context


class Work(NamedTuple):
    """What is measured, the passes over the updates it needs, whether it has to reach ``GOAL``."""

    call: Callable[[Tensor, Context], Any]
    passes: int
    judged: bool = False


WORKS = {
    "statistics": Work(lambda x, c: measure(x), 1),
    "weighted sum": Work(lambda x, c: weighted_sum(x, np.full(len(x), 1 / len(x))), 1),
    "fedsdg": Work(lambda x, c: Alignment()({"update": x}, c, {}), 2, judged=True),
    # Parameters in, parameters out; the first client's stand for the server's.
    "fedsdg, the door": Work(lambda x, c: aggregate("fedsdg", x[0], x).parameters, 2),
    "mean": Work(lambda x, c: Mean("uniform")({"update": x}, c, {}), 1, judged=True),
    "krum": Work(lambda x, c: Krum(1)({"update": x}, c, {}), 1),
    "geometric median": Work(lambda x, c: GeometricMedian()({"update": x}, c, {}), 2),
    "coordinate median": Work(lambda x, c: CoordinateMedian()({"update": x}, c, {}), 1),
}
GOAL = 0.9
SIZES = ((10, 100_000_000), (100, 10_000_000), (10, 10_000_019))
"""The last has rows that do not start at multiples of 16 bytes."""

COPIED = 1 << 30


def floor_bytes(passes: int, size: int, d: int) -> int:
    """What no implementation in float32 can do without: M rows read in every pass, one written."""
    return 4 * d * (passes * size + 1)


def milliseconds(work: Callable[[], Any], device: str) -> float:
    """Of one call; on a GPU between two events, so that the host's own time does not count."""
    if device == "cpu":
        begun = time.perf_counter()
        work()
        return 1000 * (time.perf_counter() - begun)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def draw(size: int, d: int, device: str) -> Tensor:
    """Updates [M, d] float32."""
    generator = torch.Generator(device).manual_seed(0)
    return torch.randn(size, d, generator=generator, device=device).add_(0.5)


def cohort(size: int) -> Context:
    """The context of a round in which all of M clients take part, equally large."""
    ones = np.ones(size, dtype=np.int64)
    return Context(1, np.arange(size), size, ones, size, ones, ones)


def against_a_copy(
    name: str, updates: Tensor, *, turns: int = 25, copied: int = COPIED
) -> dict[str, Any]:
    """What one of ``WORKS`` takes, as a share of its floor; raises where its result is wrong.

    ``AssertionError``: it is not what the plain reference computes.
    """
    work, device, (size, d) = WORKS[name], updates.device.type, updates.shape
    around = cohort(size)
    source = torch.zeros(copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def copy() -> Any:
        return target.copy_(source)

    result = None
    for _ in range(3):  # Compiles, and lets the clocks rise.
        result = work.call(updates, around)
        copy()
    times, rates = [], []
    before = milliseconds(copy, device)
    for _ in range(turns):
        times.append(milliseconds(lambda: work.call(updates, around), device))
        after = milliseconds(copy, device)
        rates.append(2 * copied / ((before + after) / 2))
        before = after
    with backend("torch"):
        compare(result, work.call(updates, around))
    floors = floor_bytes(work.passes, size, d) / np.array(rates)
    return {
        "rule": name,
        "clients": size,
        "parameters": d,
        "kernels": kernels_for(updates),
        "milliseconds": float(np.median(times)),
        "of_the_floor": float(np.median(floors / times)),
        "goal": GOAL if work.judged and d % 16 == 0 else None,
        "copy_gigabytes_per_second": float(np.median(rates)) / 1e6,
    }


def compare(result: Any, expected: Any) -> None:
    """Raise ``AssertionError`` where two results differ by more than rounding."""
    if isinstance(result, Tensor):
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
    elif hasattr(result, "steps"):
        torch.testing.assert_close(result.steps, expected.steps, rtol=1e-4, atol=1e-4)
    else:
        np.testing.assert_allclose(result.norms, expected.norms, rtol=1e-5)
