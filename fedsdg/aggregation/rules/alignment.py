"""FedSDG's server rule: a client weighs as much as its update is aligned with the mean update."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch

from fedsdg.aggregation.engines.ahead import Ahead, There
from fedsdg.aggregation.engines.rows import Rows
from fedsdg.aggregation.engines.statistics import Statistics
from fedsdg.aggregation.plans import Combination, Plan, PlannedRule
from fedsdg.aggregation.types import Context, Norm
from fedsdg.aggregation.uploads import require_finite
from fedsdg.aggregation.weights import capped, require_cap
from fedsdg.parts import Range, part

DEGENERATE_SUM = 1e-6
"""Below this sum of alignments the weights are uniform."""

LARGEST = float(np.finfo(np.float64).max)
"""Norms of numbers as large are infinite; rounding noise is not."""


class Weighing(NamedTuple):
    """The weights of a cohort and what they came from."""

    weights: np.ndarray
    """[M], each in [0, 1], summing to 1."""
    alignment: np.ndarray
    """[M] alpha_k of Eq. 10: max(0, cosine) with "relu", the cosine itself with "softmax"."""
    cosine: np.ndarray
    """[M] <Delta_k, z_k> / (||Delta_k|| ||z_k|| + epsilon), z_k the reference of client k."""
    degenerate: bool
    """Whether the weights fell back to uniform."""


@part
class Alignment(PlannedRule):
    """step = sum_k w_k Delta_k with w_k = alpha_k / sum_j alpha_j (FedSDG, Eq. 10 and 11).

    alpha_k = max(0, <Delta_k, mean> / (||Delta_k|| ||mean|| + epsilon)). The weights are uniform
    when sum alpha < 1e-6, and when ||mean|| is no more than rounding noise of the parameters the
    updates were formed from, 1/2 eps(dtype) max_k ||theta_k||: its direction then means nothing.
    With updates so small that ||Delta|| ||mean|| is far below epsilon, all alphas vanish: uniform.

    epsilon stands only inside the cosine, so that weights sum to 1. With reference "leave_one_out"
    the mean is that of the other clients' updates; with transform "softmax" (not Eq. 10) w =
    softmax(cosine / temperature). Then w <- (1 - s) w + s / M with s = smoothing, and what exceeds
    max_weight (ValueError if below 1/M) is spread over the others in proportion. With scope
    "adapters" the columns are compared that come as upload `adapters` [M, a], and rounding noise
    is that of these columns: the head, whose gradient is largest, has no say in the weights.
    Diagnostics: alignment [M], cosine [M], update_norm [M], mean_norm, degenerate (0 or 1).
    """

    epsilon: Annotated[float, Range(1e-300, 0.01)] = 1e-8
    "ε of the cosine (Eq. 10)"
    reference: Literal["mean", "leave_one_out"] = "mean"
    "updates are aligned to the `mean`, or to the mean of the others (`leave_one_out`)"
    transform: Literal["relu", "softmax"] = "relu"
    "scores to weights: `relu`, or `softmax` with temperature τ"
    temperature: Annotated[float, Range(1e-6)] = 0.05
    "τ of the softmax transform"
    max_weight: Annotated[float | None, Range(0, 1)] = None
    "largest weight of a client; null: no limit"
    smoothing: Annotated[float, Range(0, 1)] = 0.0
    "share of uniform weights mixed in"
    scope: Literal["all", "adapters"] = "all"
    "updates are compared in `all` communicated parameters, or in the `adapters` without the head"

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("update",) if self.scope == "all" else ("update", "adapters")

    def require(self, cohort: int, clients: int) -> None:
        if self.max_weight is not None:
            require_cap(self.max_weight, cohort)

    def plan(
        self, rows: Mapping[str, Rows], context: Context, state: Mapping[str, torch.Tensor]
    ) -> Plan:
        updates = rows[self._compared]
        self.require(updates.shape[0], context.num_clients)
        statistics = updates.measure()
        require_finite(updates, statistics.norms, context)
        noise = _noise(statistics, context.parameter_norm, torch.finfo(updates.dtype).eps)
        weighing = self.weigh(statistics, noise)
        with np.errstate(over="ignore"):  # The length of numbers near the largest is infinite.
            lengths = statistics.norms * statistics.unit
        return Plan(
            Combination(weighing.weights),
            weighing.weights,
            dict(state),
            {
                "alignment": weighing.alignment,
                "cosine": weighing.cosine,
                "update_norm": lengths,
                "mean_norm": statistics.reference_norm * statistics.unit,
                "degenerate": float(weighing.degenerate),
            },
            checked=self.scope == "all",
        )

    def ahead(
        self, rows: Mapping[str, Ahead], context: Context, state: Mapping[str, torch.Tensor]
    ) -> None:
        if self.max_weight is not None:  # What a cap takes off is spread in turns, until none is.
            return
        compared, norm = rows[self._compared], context.parameter_norm
        known = float(norm) if isinstance(norm, int | float) else 0.0
        noise = 0.5 * torch.finfo(compared.dtype).eps * min(known, LARGEST)
        rows["update"].weighted_sum(self._uncapped(compared.measure(), noise)[0])

    def weigh(self, statistics: Statistics, noise: float = 0.0) -> Weighing:
        """The weights from the statistics of the updates (dots and norm of their mean).

        noise: the norm of the mean at or below which it counts as rounding noise.
        """
        with np.errstate(divide="ignore", invalid="ignore"):  # Where degenerate.
            weights, alignment, cosine, degenerate = self._uncapped(statistics, noise)
        if self.max_weight is not None:
            weights = capped(weights, self.max_weight)
        return Weighing(weights, alignment, cosine, bool(degenerate))

    @property
    def _compared(self) -> str:
        """The upload whose directions count."""
        return "update" if self.scope == "all" else "adapters"

    def _uncapped(self, s: Statistics | There, noise: float) -> tuple[Any, Any, Any, Any]:
        """As `Weighing`, in arrays or in tensors as the statistics are."""
        library: Any = torch if isinstance(s, There) else np
        size = len(s.norms)
        cosine = self._cosine(s, library)
        degenerate = s.reference_norm * s.unit <= noise
        if self.transform == "softmax":
            alignment = cosine
            weights = library.exp((cosine - cosine.max()) / self.temperature)
            weights = weights / weights.sum()
        else:
            alignment = cosine.clip(0.0) if library is torch else np.maximum(cosine, 0.0)
            degenerate = degenerate | (alignment.sum() < DEGENERATE_SUM)
            weights = alignment / alignment.sum()
        weights = library.where(degenerate, 1.0 / size, weights)
        weights = (1 - self.smoothing) * weights + self.smoothing / size
        return weights, alignment, cosine, degenerate

    def _cosine(self, s: Statistics | There, library: Any) -> Any:
        epsilon = self.epsilon / s.unit / s.unit
        size = len(s.norms)
        if self.reference == "mean" or size == 1:
            return library.clip(s.dots / (s.norms * s.reference_norm + epsilon), -1.0, 1.0)
        # With S = M mean: the mean of the others is (S - Delta_k) / (M - 1), so all follows from
        # the dots with the mean. Where S - Delta_k cancels there is no direction: cosine 0.
        others = size - 1
        dots = (size * s.dots - s.norms**2) / others
        terms = (size * s.reference_norm) ** 2 + s.norms**2
        squares = (terms - 2 * size * s.dots) / others**2
        known = squares * others**2 > 1e-14 * terms
        norms = library.sqrt(library.where(known, squares, 0.0))
        return library.clip(
            library.where(known, dots, 0.0) / (s.norms * norms + epsilon), -1.0, 1.0
        )


def _noise(s: Statistics, parameter_norm: float | Norm | None, eps: float) -> float:
    """1/2 eps max_k ||theta_k||; where already a bound of it is below ||mean||, the bound."""
    if parameter_norm is None:
        return 0.0
    if isinstance(parameter_norm, Norm):
        bound = 0.5 * eps * min(parameter_norm.at_most(float(s.norms.max()) * s.unit), LARGEST)
        if s.reference_norm * s.unit > bound:
            return bound
    return 0.5 * eps * min(float(parameter_norm), LARGEST)
