"""Krum and Multi-Krum: the updates whose nearest neighbours are nearest."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedsdg.aggregation.rows import Rows
from fedsdg.aggregation.types import Combination, Context, Plan, Rule, State
from fedsdg.parts import Natural

TIE = 1e-11
"""Scores whose relative difference is smaller are equal up to rounding: the lower index wins."""


def krum_scores(distances: np.ndarray, f: int) -> np.ndarray:
    """Return [n] sums of the squared distances to the n - f - 2 nearest others.

    Args:
        distances: [n, n] squared distances; self is excluded by index, not by distance.
        f: Byzantine clients.
    """
    n = len(distances)
    others = distances[~np.eye(n, dtype=bool)].reshape(n, n - 1)
    return np.asarray(np.sort(others, axis=1)[:, : n - f - 2].sum(axis=1))


def best_scored(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the `count` lowest scores, best first; ties by lowest index."""
    left, chosen = list(range(len(scores))), []
    for _ in range(count):
        limit = min(scores[left]) * (1 + TIE)
        chosen.append(next(k for k in left if scores[k] <= limit))
        left.remove(chosen[-1])
    return np.array(chosen, dtype=np.int64)


class Krum(Rule):
    """step = the update with the least sum of squared distances to its n - f - 2 nearest others.

    ValueError unless n >= 2f + 3; f is never lowered silently.
    Diagnostics: score [n] (squared units of the updates), winner (client id of the best).
    Source: Blanchard et al. 2017, section 3.
    """

    f: Natural = 1
    "f, Byzantine clients per round tolerated"

    def chosen(self, n: int) -> int:
        """Return how many of n updates are averaged."""
        return 1

    def require(self, cohort: int, clients: int) -> None:
        """Raise ValueError for too few clients."""
        if cohort < 2 * self.f + 3:
            raise ValueError(
                f"Krum with f={self.f} needs at least 2f+3 = {2 * self.f + 3} clients per round "
                f"and has {cohort}; raise the number of clients per round or lower f to at most "
                f"{max((cohort - 3) // 2, 0)}"
            )

    def plan(self, rows: Mapping[str, Rows], context: Context, state: State) -> Plan:
        """Return the plan of the round."""
        scores = krum_scores(rows["update"].distances(), self.f)
        best = best_scored(scores, self.chosen(len(scores)))
        weights = np.zeros(len(scores))
        weights[best] = 1.0 / len(best)
        return Plan(
            Combination(weights),
            weights,
            state,
            {"score": scores, "winner": float(context.clients[best[0]])},
        )
