"""FedSDG's server rule: a client weighs as much as its update aligns with the mean update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsdg.aggregation.rows import Rows, Statistics
from fedsdg.aggregation.types import Combination, Context, Plan, Rule, State
from fedsdg.aggregation.weights import capped, require_cap
from fedsdg.parts import Share

DEGENERATE_SUM = 1e-6
"""Below this sum of alignments the weights are uniform."""


def clip_factors(norms: np.ndarray, clip_norm: float | None) -> np.ndarray:
    """Return [M] min(1, clip_norm / ||Delta_k||)."""
    if clip_norm is None:
        return np.ones(len(norms))
    return clip_norm / np.maximum(norms, clip_norm)


class Alignment(Rule):
    """step = sum_k w_k Delta_k with w_k = alpha_k / sum_j alpha_j (FedSDG, Eq. 10 and 11).

    alpha_k = max(0, <Delta_k, mean> / (||Delta_k|| ||mean|| + epsilon)). The weights are uniform if
    sum alpha < 1e-6, or if ||mean|| is no more than rounding noise of the parameters from which the
    updates were formed (Context.rounding): its direction then means nothing. epsilon is only inside
    the cosine, so that weights sum to 1.

    Options, in the order in which they apply: with clip_norm, longer updates are shortened to it;
    with scope "adapters", only the columns in the upload `adapters` [M, a] are compared; with
    reference "leave_one_out", each update is compared with the mean of the others; with transform
    "softmax" (not Eq. 10), w = softmax(cosine / temperature); then w <- (1 - s) w + s / M for
    smoothing s; what exceeds max_weight (ValueError if below 1/M) is spread over the others in
    proportion.
    Diagnostics: alignment [M], cosine [M], update_norm [M] (of what is compared, before
    clipping), mean_norm, degenerate (0 or 1).
    """

    epsilon: Annotated[float, Field(ge=1e-300, le=0.01)] = 1e-8
    "ε of the cosine (Eq. 10)"
    reference: Literal["mean", "leave_one_out"] = "mean"
    "updates are aligned to the `mean`, or to the mean of the others (`leave_one_out`)"
    transform: Literal["relu", "softmax"] = "relu"
    "scores to weights: `relu`, or `softmax` with temperature τ"
    temperature: Annotated[float, Field(ge=1e-06)] = 0.05
    "τ of the softmax transform"
    max_weight: Share | None = None
    "largest weight of a client; null: no limit"
    smoothing: Share = 0.0
    "share of uniform weights mixed in"
    scope: Literal["all", "adapters"] = "all"
    "updates are compared in `all` communicated parameters, or in the `adapters` without the head"
    clip_norm: Annotated[float, Field(ge=1e-300)] | None = None
    "longest update; null: no limit"

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        """The uploads that the plan looks at."""
        return ("update",) if self.scope == "all" else ("update", "adapters")

    def require(self, cohort: int, clients: int) -> None:
        """Raise ValueError for too few clients."""
        if self.max_weight is not None:
            require_cap(self.max_weight, cohort)

    def plan(self, rows: Mapping[str, Rows], context: Context, state: State) -> Plan:
        """Return the plan of the round."""
        compared, size = rows[self.reads[-1]], rows["update"].size
        s = compared.measure()
        norms = s.norms
        whole = norms if self.clip_norm is None else rows["update"].measure().norms
        factors = clip_factors(whole, self.clip_norm)
        if (factors < 1).any():
            s = compared.measure(factors / size)
            s = Statistics(factors * s.norms, factors * s.dots, s.reference_norm)
        cosine = self.cosine(s)
        alignment = np.maximum(cosine, 0.0) if self.transform == "relu" else cosine
        noise = factors.max() * context.rounding(float(norms.max()))
        vanishing = self.transform == "relu" and alignment.sum() < DEGENERATE_SUM
        degenerate = vanishing or s.reference_norm <= noise
        weights = np.full(size, 1 / size) if degenerate else self.weights(cosine)
        weights = (1 - self.smoothing) * weights + self.smoothing / size
        if self.max_weight is not None:
            weights = capped(weights, self.max_weight)
        return Plan(
            Combination(weights * factors),
            weights,
            state,
            {
                "alignment": alignment,
                "cosine": cosine,
                "update_norm": norms,
                "mean_norm": s.reference_norm,
                "degenerate": float(degenerate),
            },
        )

    def weights(self, cosine: np.ndarray) -> np.ndarray:
        """Return [M] weights from cosines, before smoothing and cap."""
        softmax = np.exp((cosine - cosine.max()) / self.temperature)
        scores = softmax if self.transform == "softmax" else np.maximum(cosine, 0.0)
        return np.asarray(scores / scores.sum())

    def cosine(self, s: Statistics) -> np.ndarray:
        """Return [M] <Delta_k, z_k> / (||Delta_k|| ||z_k|| + epsilon), z_k client k's reference.

        With S = M mean, the mean of the others is (S - Delta_k) / (M - 1), so all follows from
        dot products with the mean. If S - Delta_k cancels there is no direction: cosine 0.
        """
        size = len(s.norms)
        if self.reference == "mean" or size == 1:
            return np.clip(s.dots / (s.norms * s.reference_norm + self.epsilon), -1.0, 1.0)
        dots = size * s.dots - s.norms**2
        terms = (size * s.reference_norm) ** 2 + s.norms**2
        squares = terms - 2 * size * s.dots
        has_direction = squares > 1e-14 * terms
        norms = np.sqrt(np.where(has_direction, squares, 0.0))
        scaled = s.norms * norms + self.epsilon * (size - 1)
        return np.clip(np.where(has_direction, dots, 0.0) / scaled, -1.0, 1.0)
