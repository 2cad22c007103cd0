"""Any rule, behind a screen that blocks clients whose updates stay outliers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedsdg.aggregation.errors import NonFiniteError
from fedsdg.aggregation.rows import Rows
from fedsdg.aggregation.rules.geometric_median import geometric_median
from fedsdg.aggregation.types import Combination, Context, Plan, State, Wrapper
from fedsdg.files.columns import Column
from fedsdg.lazy import torch
from fedsdg.parts import Count

FEWEST = 4
"""Fewer clients are not judged: the spread of the others says too little."""
LEAST_SPREAD = 0.1
"""Least spread of distances, as a share of their median, and of cosines: among clients that are
nearly alike, a small difference stands out and does no harm."""
STATE = ("strikes", "blocked")


class Screened(Wrapper):
    """The inner rule on the updates of the clients that are not blocked.

    In each round the clients of the cohort that are not blocked are compared: how far is an update
    from their geometric median, and how little does it point in its direction (`outlier_scores`)?
    A client whose score exceeds `threshold` in `strikes` of its participations in a row is blocked
    for good, this round included; one participation below it resets the count. Until it is
    blocked, its updates count. Fewer than 4 clients are not judged. An update with NaN or infinity
    is infinitely far out, and is left out at once; if all of a round are so, that is an error.

    The inner rule sees the rest as if they were the cohort. If all clients of a round are blocked
    the model stays, without weights. Attacks that stay within the spread of the honest updates
    (such as ALIE) are no outliers; nor can a majority be. An honest client whose data are unlike
    all others' is an outlier too.

    State: strikes [K] and blocked [K] (0 or 1) int64, and the inner rule's.
    Weights: the inner rule's, 0 for blocked clients. Diagnostics: blocked [M] (bool, after this
    round), outlier [M] (the score; NaN if not judged), and the inner rule's, NaN for blocked
    clients.
    Source: the threshold of 3.5 is that of Iglewicz and Hoaglin 1993.
    """

    strikes: Count = 2
    "times in a row as an outlier until a client is blocked"
    threshold: Annotated[float, Field(ge=0.001)] = 3.5
    "robust standard deviations that make a client an outlier"

    columns: ClassVar = (
        Column("diagnostics", "blocked", "bool", "whether it is blocked after this round"),
    )

    def init(self, d: int, client_samples: np.ndarray) -> State:
        """Return the state before the first round."""
        none = {name: torch.zeros(len(client_samples), dtype=torch.int64) for name in STATE}
        return {**self.inner.init(d, client_samples), **none}

    def plan(self, rows: Mapping[str, Rows], context: Context, state: State) -> Plan:
        """Return the plan of the round."""
        ids = context.clients
        strikes, blocked = (state[name].numpy(force=True).copy() for name in STATE)
        scores = self.scores(rows["update"], blocked[ids] == 1)
        judged = ids[~np.isnan(scores)]
        outlying = scores[~np.isnan(scores)] > self.threshold
        strikes[judged] = np.where(outlying, strikes[judged] + 1, 0)
        blocked[judged] = strikes[judged] >= self.strikes
        kept = np.flatnonzero((blocked[ids] == 0) & (scores != np.inf))
        plan = self._plan_of(kept, rows, context, state)
        updated = {"strikes": torch.from_numpy(strikes), "blocked": torch.from_numpy(blocked)}
        return replace(
            plan,
            state={**state, **plan.state, **updated},
            diagnostics={**plan.diagnostics, "blocked": blocked[ids] == 1, "outlier": scores},
        )

    def scores(self, updates: Rows, blocked: np.ndarray) -> np.ndarray:
        """Return [M] `outlier_scores`, infinity for a non-finite update, NaN if not judged.

        Raises:
            NonFiniteError: No client that is not blocked has sent finite numbers.
        """
        scores = np.full(len(blocked), np.nan)
        watched, bad = np.flatnonzero(~blocked).tolist(), updates.nonfinite()
        sound = [k for k in watched if k not in bad]
        if watched and not sound:
            raise NonFiniteError("all updates hold non-finite values", rows=watched[:1])
        scores[[k for k in watched if k in bad]] = np.inf
        if len(sound) >= FEWEST:
            scores[sound] = outlier_scores(updates.subset(sound))
        return scores

    def _plan_of(
        self, kept: np.ndarray, rows: Mapping[str, Rows], context: Context, state: State
    ) -> Plan:
        """Return the inner rule's plan for the clients that are kept, in terms of all."""
        size = len(context.clients)
        if not len(kept):
            return Plan(Combination(np.zeros(size)), None, state)
        fewer = {
            # `server` has a row for each model.
            name: upload if name == "server" else upload.subset(kept.tolist())
            for name, upload in rows.items()
        }
        self.inner.require(len(kept), context.num_clients)
        plan = self.inner.plan(fewer, context.subset(kept), state)
        facts = {
            name: _spread(value, kept, size, np.nan) if np.shape(value) == kept.shape else value
            for name, value in plan.diagnostics.items()
        }
        weights = None if plan.weights is None else _spread(plan.weights, kept, size, 0.0)
        return replace(plan, weights=weights, diagnostics=facts, rows=kept.tolist())


def outlier_scores(updates: Rows) -> np.ndarray:
    """Return [M] how far each update is out, in robust standard deviations of the cohort.

    The larger of two scores relative to the geometric median z: of the distance ||Delta_k - z||
    being large, and of cos(Delta_k, z) being small. A score is (x_k - median) / s with
    s = 1.4826 median |x_j - median|, the standard deviation for normal numbers, at least a tenth of
    the median distance, or 0.1 for cosines. A zero update has no direction and is not judged by it.
    """
    median = geometric_median(updates, tolerance=1e-6)
    s = updates.measure(median.weights)
    lengths, deviating = s.norms * s.reference_norm, np.zeros(updates.size)
    moving = lengths > 0
    if moving.any():
        deviating[moving] = _robust_scores(-s.dots[moving] / lengths[moving], LEAST_SPREAD)
    # If most updates are equal their median distance is rounding.
    least = max(LEAST_SPREAD * float(np.median(median.reach)), 1e-6 * s.reference_norm)
    return np.maximum(_robust_scores(median.reach, least), deviating)


def _robust_scores(values: np.ndarray, least: float) -> np.ndarray:
    deviations = values - np.median(values)
    scale = max(1.4826 * float(np.median(np.abs(deviations))), least)
    return deviations / scale if scale > 0 else np.zeros(len(values))


def _spread(values: np.ndarray | float, kept: np.ndarray, size: int, missing: float) -> np.ndarray:
    """[M] the values of the clients that are kept, and `missing` for the others."""
    every = np.full(size, missing)
    every[kept] = values
    return every
