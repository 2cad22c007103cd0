"""How fast updates are aggregated: against the memory, the reference, and code as usually written.

    make bench          (or: pytest benchmarks/bench_aggregation.py --benchmark-only)

The floor is the time that memory needs: 4 d (passes M + 3) bytes (the updates as often as the rule
has to read them, the parameters in and out, the line that a store reads first) at the rate of a
bare read of the same array, measured before and after every single run. Ratios are medians over
pairs of neighbours in time, for the rate of the memory wanders. Small updates stay in the cache,
so there the ratio to the floor says little. The table stands at the end; the numbers also in
extra_info. Run alone on the machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from fedsdg.aggregation.backends import backend
from fedsdg.aggregation.kernels.columns import as_rows, over_parts
from fedsdg.aggregation.kernels.compiling import compiled
from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.geometric_median import GeometricMedian
from fedsdg.aggregation.rules.krum import Krum
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.median import CoordinateMedian
from fedsdg.aggregation.types import Context

SIZES = [(10, 130_000), (10, 1_000_000), (10, 10_000_000), (100, 2_000_000)]
TENSORS = 12
"""Into so many tensors of unequal size the code as usually written finds the parameters cut."""


@compiled
def _read(updates, start, stop):
    total = np.float32(0)
    for k in range(len(updates)):
        row = updates[k, start:stop]
        for j in range(row.size):
            total += row[j]
    return total


def bare_read(updates: torch.Tensor) -> None:
    numbers = updates.numpy()
    over_parts(as_rows(updates), 64, lambda start, stop: _read(numbers, start, stop))


def cut(row: torch.Tensor) -> dict[str, torch.Tensor]:
    bounds = [len(row) * i * i // TENSORS**2 for i in range(TENSORS + 1)]
    return {f"layer{i}": row[a:b] for i, (a, b) in enumerate(pairwise(bounds))}


def specified(theta: dict[str, torch.Tensor], clients: list[dict[str, torch.Tensor]]) -> Any:
    """FedSDG as its formulas read: flatten, subtract, stack, mean, dots, a sum per key."""
    origin = torch.cat([tensor.flatten() for tensor in theta.values()])
    deltas = [torch.cat([t.flatten() for t in client.values()]) - origin for client in clients]
    mean = torch.stack(deltas).mean(dim=0)
    norm = torch.linalg.norm(mean)
    alphas = [
        max(0.0, (torch.dot(x, mean) / (torch.linalg.norm(x) * norm + 1e-8)).item()) for x in deltas
    ]
    weights = [alpha / (sum(alphas) + 1e-8) for alpha in alphas]
    result = {}
    for key, tensor in theta.items():
        moved = torch.zeros_like(tensor)
        for weight, client in zip(weights, clients, strict=True):
            moved += weight * (client[key] - tensor)
        result[key] = tensor + moved
    return torch.cat([result[key] - theta[key] for key in theta])


def averaged(clients: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    share = 1 / len(clients)
    return torch.cat([sum(share * client[key] for client in clients) for key in clients[0]])


def nearest(updates: torch.Tensor) -> torch.Tensor:
    """Krum from torch's own distances."""
    scores = torch.cdist(updates, updates).square().sort(dim=1).values[:, 1:-2].sum(dim=1)
    return updates[scores.argmin()]


def weiszfeld(updates: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """A few steps of Weiszfeld on the updates themselves."""
    z = updates.mean(dim=0)
    for _ in range(steps):
        inverse = 1 / torch.linalg.norm(updates - z, dim=1)
        z = (inverse / inverse.sum()) @ updates
    return z


# Name -> rule, passes over the updates, and how it is usually written.
RULES: dict[str, tuple[Any, int, dict[str, Callable[[torch.Tensor, Any, Any], Any]]]] = {
    "fedsdg": (Alignment(), 2, {"specification": lambda x, theta, c: specified(theta, c)}),
    "mean": (Mean("uniform"), 1, {"per tensor": lambda x, theta, c: averaged(c)}),
    "krum": (Krum(1), 1, {"torch.cdist": lambda x, theta, c: nearest(x)}),
    "geometric median": (GeometricMedian(), 2, {"5 steps": lambda x, theta, c: weiszfeld(x)}),
    "coordinate median": (
        CoordinateMedian(),
        1,
        {
            "numpy.median": lambda x, theta, c: np.median(x.numpy(), axis=0),
            "torch.median": lambda x, theta, c: torch.median(x, dim=0).values,
        },
    ),
}


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@pytest.fixture(scope="module", autouse=True)
def _all_cores():
    before = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def table(request):
    lines: list[str] = []
    yield lines
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        threads = torch.get_num_threads()
        load = os.getloadavg()[0]
        print(f"\n\nAggregation on {threads} threads (load {load:.1f}); times of others / ours")
        print(f"{'rule':18} {'M':>4} {'d':>9} {'ms':>9} {'GB/s':>5} {'floor':>5}  others")
        print("\n".join(lines))


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def updates(request):
    size, d = request.param
    generator = torch.Generator().manual_seed(0)
    return torch.randn(size, d, generator=generator).add_(0.5)


def context(size: int) -> Context:
    ones = np.ones(size, dtype=np.int64)
    return Context(1, np.arange(size), size, ones, size, ones, ones)


@pytest.mark.parametrize("name", RULES)
def test_rule(benchmark, table, updates, name):
    rule, passes, others = RULES[name]
    size, d = updates.shape
    cohort = context(size)

    def ours() -> Any:
        return rule({"update": updates}, cohort, {})

    for work in (ours, lambda: bare_read(updates)):
        work()
    rounds = 7 if updates.numel() >= 1e8 else 25
    times, floors, rates = [], [], []
    before = seconds(lambda: bare_read(updates))
    for _ in range(rounds):
        times.append(seconds(ours))
        after = seconds(lambda: bare_read(updates))
        rates.append(4 * size * d / ((before + after) / 2))
        floors.append(4 * d * (passes * size + 3) / rates[-1])
        before = after
    facts = {"floor": float(np.median(np.array(floors) / times)), "read": float(np.median(rates))}
    with backend("torch"):
        expected = ours().steps[0]
    theta = cut(torch.zeros(d))
    clients = [cut(row) for row in updates]

    def reference() -> Any:
        with backend("torch"):
            ours()

    # Others and ours take turns, equally often, and the best of each count.
    works = {"reference": reference}
    works |= {
        key: lambda plain=plain: plain(updates, theta, clients) for key, plain in others.items()
    }
    slow = updates.numel() >= 1e8 and name not in ("fedsdg", "mean")
    for key, work in works.items():
        turns = [(seconds(work), seconds(ours)) for _ in range(1 if slow else 5)]
        facts[key] = min(theirs for theirs, _ in turns) / min(own for _, own in turns)
        times += [own for _, own in turns]
    benchmark.extra_info.update(facts)
    text = ", ".join(f"{key} {facts[key]:.1f}" for key in works)
    table.append(
        f"{name:18} {size:4} {d:9} {min(times) * 1e3:9.2f} {facts['read'] / 1e9:5.1f}"
        f" {facts['floor']:5.2f}  {text}"
    )
    step = benchmark.pedantic(ours, rounds=3).steps[0]
    torch.testing.assert_close(step, expected, rtol=1e-5, atol=1e-5)
