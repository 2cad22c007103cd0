"""The rules of other libraries: byzfl on one tensor, Flower on lists of arrays.

Both are optional (`benchmarks/requirements.txt`); `missing` names those that are not installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from types import ModuleType
from typing import Any

from benchmarks.cohorts import Cohort
from benchmarks.rules import RULES
from benchmarks.timing import Work


@cache
def byzfl() -> Any:
    """Return byzfl's aggregators, without what its own __init__ starts (data sets, training)."""
    spec = importlib.util.find_spec("byzfl")
    if spec is None:
        return None
    package = ModuleType("byzfl")
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules.setdefault("byzfl", package)
    return importlib.import_module("byzfl.aggregators")


@cache
def flower() -> Any:
    """Return Flower's functions; None if Flower or one of its dependencies is missing."""
    try:
        return importlib.import_module("flwr.server.strategy.aggregate")
    except ImportError:
        return None


def flower_simulates() -> bool:
    """Return whether Flower can simulate a federation, for which it needs ray."""
    return all(importlib.util.find_spec(name) is not None for name in ("flwr", "ray"))


def missing() -> list[str]:
    """Return the libraries that are not installed."""
    return [load.__name__ for load in (byzfl, flower) if load() is None]


def works(rule: str, cohort: Cohort) -> dict[str, Work]:
    """Return the rule by every other code that has it; the inputs are prepared beforehand."""
    codes: dict[str, Work] = {}
    on_cpu = cohort.updates.device.type == "cpu"
    if on_cpu:
        updates = cohort.updates.numpy()
        codes["numpy"] = lambda: RULES[rule].step(updates, cohort.f)
    if byzfl() is not None:
        codes |= _by_byzfl(rule, cohort)
    if on_cpu and flower() is not None:
        codes |= _by_flower(rule, cohort)
    return codes


def _by_byzfl(rule: str, cohort: Cohort) -> dict[str, Work]:
    library, f = byzfl(), cohort.f
    aggregators = {
        "fedavg": lambda: library.Average(),
        "krum": lambda: library.Krum(f),
        "multikrum": lambda: library.MultiKrum(f),
        "geometric-median": lambda: library.GeometricMedian(),
        "coordinate-median": lambda: library.Median(),
        "trimmed-mean": lambda: library.TrMean(f),
    }
    if rule not in aggregators:
        return {}
    aggregator = aggregators[rule]()
    return {"byzfl": lambda: aggregator(cohort.updates)}


def _by_flower(rule: str, cohort: Cohort) -> dict[str, Work]:
    library, f, clients = flower(), cohort.f, cohort.clients
    arrays = cohort.arrays
    calls: dict[str, Work] = {
        "fedavg": lambda: library.aggregate(arrays),
        "krum": lambda: library.aggregate_krum(arrays, f, 0),
        "multikrum": lambda: library.aggregate_krum(arrays, f, clients - f),
        "coordinate-median": lambda: library.aggregate_median(arrays),
        "trimmed-mean": lambda: library.aggregate_trimmed_avg(arrays, f / clients),
    }
    return {"Flower": calls[rule]} if rule in calls else {}
