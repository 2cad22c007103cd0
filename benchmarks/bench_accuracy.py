"""Accuracy beside speed: what each code finds, against the same computed in float64.

    pytest benchmarks/bench_accuracy.py [--short]

The geometric median by the excess of its objective sum_k ||z - x_k||; Krum by how often it picks
the winner. Both for updates that have nothing in common, and for updates that share a direction of
which their spread is a ten-thousandth, where distances from float32 products cancel.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from benchmarks import rivals
from benchmarks.cohorts import Cohort
from benchmarks.rules import ours

SPREADS = {"independent": 1.0, "common direction, spread 1e-4": 1e-4}
CLIENTS = 10
Distances = torch.Tensor


def cohort(spread: float, parameters: int, seed: int) -> Cohort:
    """x_k = common + spread * normal, the common direction normal too (none where spread = 1)."""
    generator = torch.Generator().manual_seed(seed)
    own = torch.randn(CLIENTS, parameters, generator=generator)
    common = torch.randn(parameters, generator=generator) if spread < 1 else 0
    return Cohort(common + spread * own)


def distances(updates: torch.Tensor) -> np.ndarray:
    """[M, M] Euclidean, from differences in float64."""
    rows = updates.double()
    return np.array([torch.linalg.norm(rows - row, dim=1).numpy() for row in rows])


def least_objective(between: np.ndarray) -> float:
    """min over z of sum_k ||z - x_k|| from the distances: Weiszfeld on convex weights, float64.

    ||z - x_j||^2 = (D w)_j - w'Dw / 2 for z = sum_k w_k x_k, D the squared distances.
    """
    squared = between**2
    weights = np.full(len(between), 1 / len(between))
    for _ in range(10_000):
        product = squared @ weights
        reach = np.sqrt(product - weights @ product / 2)
        weights = 1 / reach / (1 / reach).sum()
    return float(reach.sum())


def objective(updates: torch.Tensor, z: torch.Tensor) -> float:
    return sum(torch.linalg.norm(row.double() - z.double()).item() for row in updates)


def krum_winner(between: np.ndarray, neighbours: int) -> int:
    """The row with the least sum of squared distances to its nearest others."""
    return int(np.sort(between**2, axis=1)[:, 1 : neighbours + 1].sum(axis=1).argmin())


def codes(rule: str, cohort: Cohort) -> dict[str, Callable[[], torch.Tensor]]:
    """What each code gives, as a vector."""
    work = ours(rule, cohort)
    found = {"ours": lambda: work().steps[0]}
    for name, other in rivals.works(rule, cohort).items():
        found[name] = lambda other=other: _vector(other())
    return found


def _vector(result: object) -> torch.Tensor:
    """Flower gives a list of arrays."""
    if isinstance(result, list):
        return torch.from_numpy(np.concatenate(result))
    assert isinstance(result, torch.Tensor)
    return result


@pytest.mark.parametrize("updates", SPREADS)
def test_geometric_median(record, short, updates):
    parameters = 100_000 if short else 1_000_000
    drawn = cohort(SPREADS[updates], parameters, seed=0)
    least = least_objective(distances(drawn.updates))
    for code, work in codes("geometric-median", drawn).items():
        excess = objective(drawn.updates, work()) / least - 1
        facts = {"rule": "geometric-median", "code": code, "measure": "excess of the objective"}
        facts |= {"updates": updates, "clients": CLIENTS, "parameters": parameters}
        # Less than this is rounding of the float32 result and of the solution itself.
        shown = "< 1e-9" if excess < 1e-9 else f"{excess:.1e}"
        record("accuracy", **facts, value=excess, shown=shown)
        assert code != "ours" or excess <= 1e-6


@pytest.mark.parametrize("updates", SPREADS)
def test_krum(record, short, updates):
    parameters, draws = (100_000, 3) if short else (1_000_000, 10)
    right: dict[str, int] = {}
    for seed in range(draws):
        drawn = cohort(SPREADS[updates], parameters, seed)
        between = distances(drawn.updates)
        for code, work in codes("krum", drawn).items():
            # byzfl's definition counts one neighbour more; it is held to its own.
            neighbours = CLIENTS - drawn.f - (1 if code == "byzfl" else 2)
            winner = drawn.updates[krum_winner(between, neighbours)]
            right[code] = right.get(code, 0) + bool(torch.equal(work(), winner))
    for code, count in right.items():
        facts = {"rule": "krum", "code": code, "measure": "right winner", "updates": updates}
        facts |= {"clients": CLIENTS, "parameters": parameters}
        record("accuracy", **facts, value=count / draws, shown=f"{count} of {draws}")
        assert code != "ours" or count == draws
