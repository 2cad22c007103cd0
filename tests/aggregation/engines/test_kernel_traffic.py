"""How often rules go over the updates, and what they allocate: counted, not timed."""

import tracemalloc
from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedsdg.aggregation.engines.backends import backend
from fedsdg.aggregation.engines.kernels import columns, loops, sums, traffic, trimmed_means
from fedsdg.aggregation.engines.kernels.columns import as_rows, over_parts, parameter_rows
from fedsdg.aggregation.engines.statistics import distances_by_kernels, measured_by_kernels
from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.cgsv import Cgsv
from fedsdg.aggregation.rules.geometric_median import GeometricMedian
from fedsdg.aggregation.rules.krum import Krum
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.median import CoordinateMedian
from fedsdg.aggregation.rules.trimmed_mean import TrimmedMean


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("size", [1, 10, 100])
@pytest.mark.parametrize("d", [1, 64, 65, 10_000, 100_003])
def test_parts_hold_every_column_once(size, d, backwards, monkeypatch):
    monkeypatch.setattr(columns, "PART_BYTES", 1 << 16)
    rows = as_rows(torch.empty(1, d).expand(size, -1))
    parts = []
    over_parts(rows, 64, lambda start, stop: parts.append((start, stop)), backwards=backwards)
    assert parts == sorted(parts, reverse=backwards)
    assert sorted(column for part in parts for column in range(*part)) == list(range(d))
    assert all(start % 64 == 0 for start, _ in parts)


@pytest.mark.parametrize(
    ("rule", "passes"),
    [
        (Alignment(), {"moments": 1, "weighted_sum": 1}),
        (Cgsv(), {"moments": 2, "weighted_sum": 1}),
        (Mean("uniform"), {"weighted_sum": 1}),
        (Krum(1), {"distances": 1}),
        (GeometricMedian(), {"distances": 1, "weighted_sum": 1}),
        (CoordinateMedian(), {"trimmed_mean": 1}),
        (TrimmedMean(2), {"trimmed_mean": 1}),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, dict) else "",
)
def test_passes_of_the_rules(rule, passes, cohort, monkeypatch):
    """The floor of the benchmark is of so many passes over the updates."""
    columns_of = Counter()

    def counted(name):
        kernel = getattr(loops, name)

        def run(source, start, stop, *rest):
            columns_of[name] += stop - start
            return kernel(source, start, stop, *rest)

        return run

    for name in ("moments", "distances", "weighted_sum", "trimmed_mean", "nonzeros"):
        monkeypatch.setattr(loops, name, counted(name))
    size, d = 10, 20_000
    updates = torch.randn(size, d, generator=torch.Generator().manual_seed(0)).add_(0.5)
    with backend("numba"):
        rule({"update": updates}, cohort(size), rule.init(d, np.ones(size)))

    assert columns_of == {name: d * number for name, number in passes.items()}


def test_bytes_of_a_pass():
    clients, origin = torch.empty(10, 1000), torch.empty(1000)
    out = torch.empty(1000)
    assert traffic.measuring(as_rows(clients)) == (40_000, 0)
    assert traffic.measuring(as_rows(clients.bfloat16())) == (20_000, 0)
    rows = parameter_rows(list(clients), origin)
    assert traffic.measuring(rows) == (44_000, 0)
    assert traffic.writing(rows, out) == (44_000, 4_000)
    assert traffic.writing(rows, out, origin) == (44_000, 4_000)
    assert traffic.writing(as_rows(clients), out, origin) == (44_000, 4_000)


class Operations(TorchDispatchMode):
    """Counts what torch is asked for."""

    def __init__(self):
        super().__init__()
        self.count = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.count[str(function)] += 1
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("storage", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_origin", [False, True])
def test_nothing_of_size_d_is_allocated(storage, with_origin):
    size, d = 20, 1_000_000
    clients = [torch.randn(d).to(storage) for _ in range(size)]
    origin = torch.randn(d).to(storage) if with_origin else None
    out, weights = torch.empty(d, dtype=storage), np.full(size, 1 / size)
    rows = parameter_rows(clients, origin)

    def everything(rows):
        measured_by_kernels(rows)
        distances_by_kernels(rows)
        sums.weighted_sum(rows, weights, out, origin)
        trimmed_means.trimmed_mean(rows, 3, out, origin)

    everything(rows._replace(d=1000))  # Compiled, and their tables laid out.
    tracemalloc.start()
    try:
        with Operations() as operations:
            everything(rows)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < d / 2  # Bytes: an eighth of one row of float32.
    assert not operations.count
