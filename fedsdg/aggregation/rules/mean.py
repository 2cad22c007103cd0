"""The weighted mean of the updates (FedAvg)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from fedsdg.aggregation.plans import Combination, Plan, PlannedRule
from fedsdg.aggregation.rows import Rows
from fedsdg.aggregation.types import Context
from fedsdg.aggregation.uploads import require_finite


@dataclass(frozen=True)
class Mean(PlannedRule):
    """step = sum_k w_k Delta_k (McMahan et al. 2017, Algorithm 1).

    weights: "samples" w_k = n_k / sum n (McMahan); "uniform" w_k = 1/M; "batches" in proportion to
    the local steps per epoch. Raises ValueError when the chosen counts sum to zero.
    """

    weights: Literal["samples", "uniform", "batches"] = "samples"

    def __post_init__(self) -> None:
        if self.weights not in ("samples", "uniform", "batches"):
            raise ValueError(f"weights={self.weights!r}: use 'samples', 'uniform' or 'batches'")

    @property
    def needs(self) -> str | None:
        """The counts without which there are no weights."""
        return None if self.weights == "uniform" else f"num_{self.weights}"

    def plan(
        self, rows: Mapping[str, Rows], context: Context, state: Mapping[str, torch.Tensor]
    ) -> Plan:
        weights = self._weights(context)
        hides = not weights.all()  # A weight of zero may hide what is not finite.
        if hides:
            require_finite(rows["update"], None, context)
        return Plan(Combination(weights), weights, dict(state), checked=hides)

    def _weights(self, context: Context) -> np.ndarray:
        size = len(context.clients)
        if self.weights == "uniform":
            return np.full(size, 1.0 / size)
        source = context.num_samples if self.weights == "samples" else context.num_batches
        counts = np.asarray(source, dtype=np.float64)
        if counts.shape != (size,) or not (counts >= 0).all() or not counts.sum() > 0:
            raise ValueError(
                f"cannot weigh by {self.weights}: the counts {counts.tolist()} must be {size} "
                f"numbers >= 0 with a positive sum; use weights='uniform'"
            )
        return counts / counts.sum()
