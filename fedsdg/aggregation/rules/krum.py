"""Krum and Multi-Krum: the updates whose nearest neighbours are nearest (Blanchard et al. 2017)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from fedsdg.aggregation.arguments import check_whole_number
from fedsdg.aggregation.engines.rows import Rows, squares_suffice
from fedsdg.aggregation.plans import Combination, Plan, PlannedRule
from fedsdg.aggregation.types import Context
from fedsdg.aggregation.uploads import require_finite

TIE = 1e-11
"""Scores that differ by less, relatively, are equal up to rounding: the lower index wins."""


def krum_scores(distances: np.ndarray, f: int) -> np.ndarray:
    """[n] sums of the squared distances to the n - f - 2 nearest others, self excluded by index.

    distances: [n, n] squared distances. Raises ValueError unless n >= 2f + 3.
    """
    _check_size(len(distances), f)
    return np.asarray(_nearest(distances, f).sum(axis=1))


def krum_log_scores(logs: np.ndarray, f: int) -> np.ndarray:
    """[n] log2 of `krum_scores` from log2 of the distances, for those that no float has room for.

    logs: [n, n] log2 ||x_i - x_j||.
    """
    _check_size(len(logs), f)
    return np.asarray(np.logaddexp2.reduce(2 * _nearest(logs, f), axis=1))


def _nearest(distances: np.ndarray, f: int) -> np.ndarray:
    n = len(distances)
    others = distances[~np.eye(n, dtype=bool)].reshape(n, n - 1)
    return np.asarray(np.sort(others, axis=1)[:, : n - f - 2])


def _check_size(n: int, f: int) -> None:
    if n < 2 * f + 3:
        raise ValueError(
            f"Krum with f={f} needs at least 2f+3 = {2 * f + 3} clients per round and has {n}; "
            f"raise the number of clients per round or lower f to at most {max((n - 3) // 2, 0)}"
        )


def best_scored(scores: np.ndarray, count: int, *, logs: bool = False) -> np.ndarray:
    """Indices of the `count` lowest scores, best first; ties by lowest index.

    logs: whether the scores are given as logarithms to the base 2.
    """
    left = list(range(len(scores)))
    chosen = []
    for _ in range(count):
        lowest = min(scores[left])
        limit = lowest + np.log2(1 + TIE) if logs else lowest * (1 + TIE)
        chosen.append(next(i for i in left if scores[i] <= limit))
        left.remove(chosen[-1])
    return np.array(chosen, dtype=np.int64)


@dataclass(frozen=True)
class MultiKrum(PlannedRule):
    """step = the unweighted mean of the m best-scored updates (Blanchard et al. 2017, section 4).

    f: number of Byzantine clients to withstand per round, n >= 2f + 3, else ValueError (f is never
    clamped). m: how many to average, 1 <= m <= n - f; None for n - f.
    Diagnostics: score [n] (squared units of the updates), winner (client id of the best).
    """

    f: int = 1
    m: int | None = None

    def __post_init__(self) -> None:
        check_whole_number("f", self.f, 0)
        if self.m is not None:  # n - f
            check_whole_number("m", self.m, 1)

    def plan(
        self, rows: Mapping[str, Rows], context: Context, state: Mapping[str, torch.Tensor]
    ) -> Plan:
        updates = rows["update"]
        n = updates.shape[0]
        _check_size(n, self.f)  # Before the distances, which may take long.
        count = n - self.f if self.m is None else self.m
        if count > n - self.f:
            raise ValueError(f"m={count} must be at most n - f = {n - self.f}; lower m or f")
        distances, unit = updates.squared_distances()
        require_finite(updates, distances, context)
        with np.errstate(over="ignore"):  # Of updates beyond 1e154 the squares are infinite.
            if squares_suffice(distances, unit, updates):
                scores = krum_scores(distances, self.f)
                chosen = best_scored(scores, count)
                reported = scores * unit * unit
            else:
                scores = krum_log_scores(updates.log_distances(), self.f)
                chosen = best_scored(scores, count, logs=True)
                reported = np.exp2(scores)
        weights = np.zeros(n)
        weights[chosen] = 1.0 / count
        return Plan(
            Combination(weights),
            weights,
            dict(state),
            {"score": reported, "winner": float(context.clients[chosen[0]])},
            checked=True,
        )


@dataclass(frozen=True)
class Krum(PlannedRule):
    """step = the best-scored update: Multi-Krum with m = 1 (Blanchard et al. 2017, section 3)."""

    f: int = 1

    def __post_init__(self) -> None:
        MultiKrum(self.f, 1)

    def plan(
        self, rows: Mapping[str, Rows], context: Context, state: Mapping[str, torch.Tensor]
    ) -> Plan:
        return MultiKrum(self.f, 1).plan(rows, context, state)
