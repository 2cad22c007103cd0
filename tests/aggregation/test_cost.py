"""How often rules go through the data: exact counts of passes, of bytes and of blocks."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedsdg.aggregation import aggregate, aggregate_files
from fedsdg.aggregation.rows import MemoryRows, Rows
from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.geometric_median import GeometricMedian
from fedsdg.aggregation.rules.screened import Screened

from . import cohorts

PASSES = {
    "fedavg-uniform": 1,
    "coordinate-median": 1,
    "trimmed-mean": 1,
    "fedsdg": 2,
    "krum": 2,
    "multikrum": 2,
    "geometric-median": 2,
    "cgsv": 3,
}


@pytest.fixture
def folder(tmp_path):
    theta, clients = cohorts.drawn(seed=1, size=6)
    save_file(cohorts.tensors(theta), tmp_path / "g")
    for k, client in enumerate(clients):
        save_file(cohorts.tensors(client), tmp_path / f"{k}.safetensors")
    return tmp_path


def run(folder, rule, **options):
    files = [folder / f"{k}.safetensors" for k in range(6)]
    if rule == "cgsv":
        options |= {"client_samples": [1] * 6, "state_out": folder / "state"}
    return aggregate_files(rule, folder / "g", files, folder / "new", overwrite=True, **options)


@pytest.mark.parametrize("rule", PASSES)
def test_passes_over_files(rule, folder):
    made = run(folder, rule)
    assert made.passes == PASSES[rule]
    d = made.num_parameters
    assert d == sum(int(np.prod(shape)) for shape in cohorts.SHAPES.values())
    rows = {"krum": 7 + 2, "multikrum": 7 + 6}
    assert made.bytes_read == 4 * d * rows.get(rule, 7 * PASSES[rule])


@pytest.mark.parametrize("rule", PASSES)
def test_passes_over_memory(rule, monkeypatch):
    theta, clients = cohorts.drawn(seed=1, size=6)
    passes = []
    blocks = MemoryRows.blocks

    def counted(self):
        passes.append(self.size)
        return blocks(self)

    monkeypatch.setattr(MemoryRows, "blocks", counted)
    aggregate(rule, theta, clients, client_samples=[1] * 6)
    assert passes.count(6) == PASSES[rule]


def test_what_was_asked_once_is_remembered(monkeypatch):
    theta, clients = cohorts.drawn(seed=1, size=6)
    calls = []
    reduced = Rows._reduced
    monkeypatch.setattr(
        Rows, "_reduced", lambda self, f, *a: calls.append(f.__name__) or reduced(self, f, *a)
    )
    rows = MemoryRows([cohorts.tensors(client) for client in clients], cohorts.tensors(theta))
    rows.measure()
    rows.measure(np.full(6, 1 / 6))
    rows.distances()
    rows.distances()
    assert calls == ["norms_and_dots", "distances"]


def test_distant_attackers_cost_passes_in_float64(monkeypatch):
    updates = torch.randn(9, 50, generator=torch.Generator().manual_seed(0))
    updates[0] *= 1e10
    counted = []
    reduced = Rows._reduced
    monkeypatch.setattr(
        Rows, "_reduced", lambda self, f, *a: counted.append(f.__name__) or reduced(self, f, *a)
    )
    aggregate(GeometricMedian(), torch.zeros(50), updates)
    assert counted[0] == "distances" and 1 <= counted.count("gram") <= 4


def test_clipping_and_screening_cost_what_they_say(monkeypatch):
    theta, clients = cohorts.drawn(seed=1, size=6)
    counted = []
    reduced = Rows._reduced
    monkeypatch.setattr(
        Rows, "_reduced", lambda self, f, *a: counted.append(f.__name__) or reduced(self, f, *a)
    )
    aggregate(Alignment(clip_norm=1.0), theta, clients)
    assert counted == ["norms_and_dots", "norms_and_dots"]
    counted.clear()
    aggregate(Screened(inner=Alignment()), theta, clients, num_clients=6)
    # Of those that are compared, of those that are kept, and of theta_g alone.
    assert counted == ["distances", "norms_and_dots", "norms_and_dots", "norms_and_dots"]


def test_nothing_as_large_as_the_parameters_is_allocated_beside_the_result():
    """Of torch's own memory, by its profiler."""
    theta = torch.zeros(400_000)
    clients = [torch.full((400_000,), float(k)) for k in range(8)]
    out = torch.empty_like(theta)
    aggregate("fedsdg", theta, clients, out=out)  # Compiles what is to be compiled.
    with torch.profiler.profile(profile_memory=True) as profile:
        aggregate("fedsdg", theta, clients, out=out)
    largest = max(event.self_cpu_memory_usage for event in profile.events())
    assert largest < 8 * theta.numel()
