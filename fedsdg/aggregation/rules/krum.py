"""Krum and Multi-Krum: the updates whose nearest neighbours are nearest (Blanchard et al. 2017)."""

from collections.abc import Mapping
from typing import Annotated

import numpy as np
import torch

from fedsdg.aggregation.engines.rows import Rows, squares_suffice
from fedsdg.aggregation.plans import Combination, Plan, PlannedRule
from fedsdg.aggregation.types import Context
from fedsdg.aggregation.uploads import require_finite
from fedsdg.parts import Range, part

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


@part
class Krum(PlannedRule):
    """step = the best-scored update (Blanchard et al. 2017, section 3).

    Raises ValueError unless n >= 2f + 3 (f is never clamped).
    Diagnostics: score [n] (squared units of the updates), winner (client id of the best).
    """

    f: Annotated[int, Range(0)] = 1
    "f, Byzantine clients per round tolerated"

    def taken(self, n: int) -> int:
        """Of how many of n updates the mean is the step."""
        return 1

    def require(self, cohort: int, clients: int) -> None:
        _check_size(cohort, self.f)

    def plan(
        self, rows: Mapping[str, Rows], context: Context, state: Mapping[str, torch.Tensor]
    ) -> Plan:
        updates = rows["update"]
        n = updates.shape[0]
        self.require(n, context.num_clients)  # Before the distances, which may take long.
        count = self.taken(n)
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


@part
class MultiKrum(Krum):
    """step = the unweighted mean of the m best-scored updates (Blanchard et al. 2017, section 4).

    Raises ValueError unless n >= 2f + 3 and m <= n - f. Diagnostics as of Krum.
    """

    m: Annotated[int | None, Range(1)] = None
    "m, how many updates are averaged; null: all but f"

    def taken(self, n: int) -> int:
        return n - self.f if self.m is None else self.m

    def require(self, cohort: int, clients: int) -> None:
        super().require(cohort, clients)
        if self.taken(cohort) > cohort - self.f:
            raise ValueError(f"m={self.m} must be at most n - f = {cohort - self.f}; lower m or f")
