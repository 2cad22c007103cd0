"""The weighted mean of the updates (FedAvg)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from fedsdg.aggregation.statistics import weighted_sum
from fedsdg.aggregation.types import Aggregate, Context, StatelessRule
from fedsdg.aggregation.uploads import checked_upload, require_finite


@dataclass(frozen=True)
class Mean(StatelessRule):
    """step = sum_k w_k Delta_k (McMahan et al. 2017, Algorithm 1).

    weights: "samples" w_k = n_k / sum n (McMahan); "uniform" w_k = 1/M; "batches" in proportion to
    the local steps per epoch. Raises ValueError when the chosen counts sum to zero.
    """

    weights: Literal["samples", "uniform", "batches"] = "samples"

    def __post_init__(self) -> None:
        if self.weights not in ("samples", "uniform", "batches"):
            raise ValueError(f"weights={self.weights!r}: use 'samples', 'uniform' or 'batches'")

    def __call__(
        self,
        uploads: Mapping[str, torch.Tensor],
        context: Context,
        state: Mapping[str, torch.Tensor],
    ) -> Aggregate:
        updates = checked_upload(uploads, context, finite=False)
        weights = self._weights(context)
        if not weights.all():  # A weight of zero may hide what is not finite.
            checked_upload(uploads, context)
        step = weighted_sum(updates, weights)
        require_finite(updates, step, context)
        return Aggregate(step[None], weights, dict(state), {})

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
