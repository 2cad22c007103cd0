"""The same rules as others write them: the specification, plain torch and numpy, Flower, byzfl.

Flower and byzfl are optional (`benchmarks/requirements.txt`); without them their columns are
empty, and `missing()` says so.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch

from benchmarks.cohorts import Cohort
from benchmarks.timing import Work

Tensors = Mapping[str, torch.Tensor]


def specified(theta: Tensors, clients: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """FedSDG as its formulas read: flatten, subtract, stack, mean, dots, a sum per tensor."""
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
    return result


def averaged(clients: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A weighted mean as it is usually written: a sum per tensor."""
    share = 1 / len(clients)
    return {
        key: torch.stack([share * client[key] for client in clients]).sum(dim=0)
        for key in clients[0]
    }


def cosine_shapley(updates: torch.Tensor) -> torch.Tensor:
    """CGSV's first round as its formulas read (uniform shares, gamma 1/2, floor 1e-3)."""
    size = len(updates)
    norms = torch.linalg.norm(updates, dim=1)
    units = updates / norms[:, None]
    r = torch.full((size,), 1 / size)
    together = (r[:, None] * units).sum(dim=0)
    psi = torch.nn.functional.cosine_similarity(units, together[None], dim=1)
    r = (r / 2 + psi / 2).clamp(min=1e-3)
    r /= r.sum()
    return together * norms.mean()


@cache
def byzfl() -> ModuleType | None:
    """byzfl's aggregators, without what its own __init__ starts (data sets, training)."""
    spec = importlib.util.find_spec("byzfl")
    if spec is None:
        return None
    package = ModuleType("byzfl")
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules.setdefault("byzfl", package)
    return importlib.import_module("byzfl.aggregators")


@cache
def flower() -> ModuleType | None:
    """Flower's functions on lists of arrays; None where it, or what it imports, is missing."""
    try:
        return importlib.import_module("flwr.server.strategy.aggregate")
    except ImportError:
        return None


def flower_simulates() -> bool:
    """Whether Flower can simulate a federation: it then needs ray."""
    return all(importlib.util.find_spec(name) is not None for name in ("flwr", "ray"))


def missing() -> list[str]:
    """Compared codes that are not installed."""
    return [load.__name__ for load in (byzfl, flower) if load() is None]


def works(rule: str, cohort: Cohort) -> dict[str, Work]:
    """Name of the code -> the rule done by it on this cohort; inputs are prepared beforehand."""
    found = _plain(rule, cohort)
    if byzfl() is not None:
        found |= _by_byzfl(rule, cohort, byzfl())
    if flower() is not None:
        found |= _by_flower(rule, cohort, flower())
    return found


def _plain(rule: str, cohort: Cohort) -> dict[str, Work]:
    updates = cohort.updates
    share = 1 / cohort.clients
    table: dict[str, dict[str, Work]] = {
        "fedsdg": {"plain": lambda: specified(cohort.origin, cohort.dictionaries)},
        "fedavg": {"plain": lambda: averaged(cohort.dictionaries)},
        "cgsv": {"plain": lambda: cosine_shapley(updates)},
        "scaffold": {"plain": lambda: (updates.mean(dim=0), (share * updates).sum(dim=0))},
        "coordinate-median": {
            "numpy": lambda: np.median(updates.numpy(), axis=0),
            "torch": lambda: torch.median(updates, dim=0).values,
        },
        "trimmed-mean": {
            "plain": lambda: torch.sort(updates, dim=0).values[cohort.f : -cohort.f].mean(dim=0)
        },
    }
    return table.get(rule, {})


def _by_byzfl(rule: str, cohort: Cohort, module: Any) -> dict[str, Work]:
    made = {
        "fedavg": lambda: module.Average(),
        "krum": lambda: module.Krum(cohort.f),
        "multikrum": lambda: module.MultiKrum(cohort.f),
        "geometric-median": lambda: module.GeometricMedian(),
        "coordinate-median": lambda: module.Median(),
        "trimmed-mean": lambda: module.TrMean(cohort.f),
    }
    if rule not in made:
        return {}
    aggregator = made[rule]()
    return {"byzfl": lambda: aggregator(cohort.updates)}


def _by_flower(rule: str, cohort: Cohort, module: Any) -> dict[str, Work]:
    f, size, layers = cohort.f, cohort.clients, cohort.layers
    table: dict[str, Work] = {
        "fedavg": lambda: module.aggregate(layers),
        "krum": lambda: module.aggregate_krum(layers, f, 0),
        "multikrum": lambda: module.aggregate_krum(layers, f, size - f),
        "coordinate-median": lambda: module.aggregate_median(layers),
        "trimmed-mean": lambda: module.aggregate_trimmed_avg(layers, f / size),
    }
    return {"flower": table[rule]} if rule in table else {}
