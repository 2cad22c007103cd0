"""The rules that are measured: ours, the same in plain numpy, and the least bytes to be moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

BYZANTINE_SHARE = 10
"""Robust rules withstand one attacker among so many clients, and at least one."""


def norms(rows: np.ndarray) -> np.ndarray:
    """Return the Euclidean norm of every row."""
    return np.sqrt(np.einsum("kd,kd->k", rows, rows))


def fedsdg(updates: np.ndarray, f: int) -> np.ndarray:
    """Weight updates by their cosine with the mean update, where it is positive."""
    centre = updates.mean(axis=0)
    cosines = updates @ centre / (norms(updates) * np.sqrt(centre @ centre) + 1e-8)
    alphas = np.maximum(cosines, 0)
    return alphas / alphas.sum() @ updates


def krum_order(updates: np.ndarray, f: int) -> np.ndarray:
    """Sort clients by the sum of squared distances to their n - f - 2 nearest others."""
    gram = updates @ updates.T
    squares = gram.diagonal()
    distances = squares[:, None] + squares[None, :] - 2 * gram
    np.fill_diagonal(distances, np.inf)
    nearest = np.sort(distances, axis=1)[:, : len(updates) - f - 2]
    return np.argsort(nearest.sum(axis=1))


def geometric_median(updates: np.ndarray, f: int) -> np.ndarray:
    """Iterate as Weiszfeld did, until the sum of distances falls by less than a millionth."""
    median = updates.mean(axis=0)
    last = np.inf
    while True:
        distances = np.maximum(norms(updates - median), 1e-12)
        if last - distances.sum() < 1e-6 * distances.sum():
            return median
        last = distances.sum()
        weights = 1 / distances
        median = weights / weights.sum() @ updates


def cgsv(updates: np.ndarray, f: int) -> np.ndarray:
    """Return the first step of cosine-gradient Shapley values, at the mean length."""
    lengths = norms(updates)
    units = updates / lengths[:, None]
    together = units.mean(axis=0)
    units @ together  # The contributions, which go into the state.
    return together * lengths.mean()


class MeasuredRule(NamedTuple):
    """A rule in plain numpy, and what no implementation of it can do without."""

    step: Callable[[np.ndarray, int], np.ndarray]
    """from updates [M, d] and f to the step [d]"""
    passes: int
    """reads of all updates: two if the weights depend on all of them"""
    robust: bool = False
    """whether it takes f, the number of attackers to withstand"""


RULES = {
    "fedsdg": MeasuredRule(fedsdg, 2),
    "fedavg": MeasuredRule(lambda updates, f: updates.mean(axis=0), 1),
    "krum": MeasuredRule(lambda updates, f: updates[krum_order(updates, f)[0]], 1, robust=True),
    "multikrum": MeasuredRule(
        lambda updates, f: updates[krum_order(updates, f)[: len(updates) - f]].mean(axis=0),
        2,
        robust=True,
    ),
    "geometric-median": MeasuredRule(geometric_median, 2),
    "coordinate-median": MeasuredRule(lambda updates, f: np.median(updates, axis=0), 1),
    "trimmed-mean": MeasuredRule(
        lambda updates, f: np.sort(updates, axis=0)[f:-f].mean(axis=0),
        1,
        robust=True,
    ),
    "cgsv": MeasuredRule(cgsv, 2),
}


def least_bytes(rule: str, clients: int, parameters: int, device: str = "cpu") -> int:
    """Return the bytes that have to be moved, 4 d (passes M + 3).

    The rows beside the updates are the global parameters, the result, and on a CPU the memory that
    a store fetches before it overwrites it; a GPU does without that fetch.
    """
    extra = 3 if device == "cpu" else 2
    return 4 * parameters * (RULES[rule].passes * clients + extra)
