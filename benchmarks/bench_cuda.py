"""How fast updates on a GPU are aggregated, against a copy in its memory; skipped without a GPU.

    pytest benchmarks/bench_cuda.py --benchmark-only -s

A copy of 1 GiB, taken before and after every single run, says what the memory delivers: twice its
size over its time. The floor is the time for 4 d (passes M + 3) bytes at that rate, as on the CPU
(`bench_aggregation.py`). Ratios are medians over neighbours in time; 0.9 is asked for. The kernels
behind them stand beside the whole rules, without what the CPU adds (checks, a few small launches).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedsdg.aggregation.backends import backend, kernels_for
from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.geometric_median import GeometricMedian
from fedsdg.aggregation.rules.krum import Krum
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.median import CoordinateMedian
from fedsdg.aggregation.statistics import measure, weighted_sum
from fedsdg.aggregation.types import Context

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SIZES = [(10, 100_000_000), (100, 10_000_000), (10, 10_000_019)]
"""The last has rows that do not start at multiples of 16 bytes."""

COPIED = 1 << 30

# Name -> what is measured, passes over the updates, whether it has to reach GOAL.
WORKS: dict[str, tuple[Callable[[torch.Tensor, Context], Any], int, bool]] = {
    "statistics": (lambda x, c: measure(x), 1, False),
    "weighted sum": (lambda x, c: weighted_sum(x, np.full(len(x), 1 / len(x))), 1, False),
    "fedsdg": (lambda x, c: Alignment()({"update": x}, c, {}), 2, True),
    "mean": (lambda x, c: Mean("uniform")({"update": x}, c, {}), 1, True),
    "krum": (lambda x, c: Krum(1)({"update": x}, c, {}), 1, False),
    "geometric median": (lambda x, c: GeometricMedian()({"update": x}, c, {}), 2, False),
    "coordinate median": (lambda x, c: CoordinateMedian()({"update": x}, c, {}), 1, False),
}
GOAL = 0.9


def milliseconds(work: Callable[[], Any]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def updates(request):
    size, d = request.param
    generator = torch.Generator("cuda").manual_seed(0)
    return torch.randn(size, d, generator=generator, device="cuda").add_(0.5)


@pytest.mark.parametrize("name", WORKS)
def test_against_a_copy(benchmark, updates, name):
    work, passes, judged = WORKS[name]
    size, d = updates.shape
    ones = np.ones(size, dtype=np.int64)
    cohort = Context(1, np.arange(size), size, ones, size, ones, ones)
    assert kernels_for(updates) == "triton"
    source = torch.empty(COPIED, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)

    def copy() -> Any:
        return target.copy_(source)

    for _ in range(3):  # Compiles, and lets the clocks rise.
        result = work(updates, cohort)
        copy()
    times, rates = [], []
    before = milliseconds(copy)
    for _ in range(25):
        times.append(milliseconds(lambda: work(updates, cohort)))
        after = milliseconds(copy)
        rates.append(2 * COPIED / ((before + after) / 2))
        before = after
    floors = 4 * d * (passes * size + 3) / np.array(rates)
    ratio = float(np.median(floors / times))
    facts = {
        "floor": ratio,
        "ms": float(np.median(times)),
        "copy_gb_s": float(np.median(rates)) / 1e6,
        "gpu": torch.cuda.get_device_name(),
    }
    benchmark.extra_info.update(facts)
    print(f"\n{name:18} {size:4} {d:10} {facts['ms']:9.3f} ms  {ratio:5.2f} of the floor;", end=" ")
    print(f"copy {facts['copy_gb_s']:.0f} GB/s on {facts['gpu']}")
    benchmark.pedantic(lambda: work(updates, cohort), rounds=3)
    with backend("torch"):
        expected = work(updates, cohort)
    compare(result, expected)
    if judged and d % 16 == 0:
        assert ratio >= GOAL, f"{name} reaches {ratio:.2f} of the floor, {GOAL} is asked for"


def compare(result: Any, expected: Any) -> None:
    if isinstance(result, torch.Tensor):
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
    elif hasattr(result, "steps"):
        torch.testing.assert_close(result.steps, expected.steps, rtol=1e-4, atol=1e-4)
    else:
        np.testing.assert_allclose(result.norms, expected.norms, rtol=1e-5)
