"""The weighted mean of the updates (FedAvg)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fedsdg.aggregation.engines.rows import Rows
from fedsdg.aggregation.plans import Combination, Plan, PlannedRule
from fedsdg.aggregation.types import Context
from fedsdg.aggregation.uploads import require_finite
from fedsdg.aggregation.weights import Weights, check_weights, client_counts, needed_counts


@dataclass(frozen=True)
class Mean(PlannedRule):
    """step = sum_k w_k Delta_k (McMahan et al. 2017, Algorithm 1).

    weights: "samples" w_k = n_k / sum n (McMahan); "uniform" w_k = 1/M; "batches" in proportion to
    the local steps per epoch. Raises ValueError when the chosen counts sum to zero.
    """

    weights: Weights = "samples"

    def __post_init__(self) -> None:
        check_weights(self.weights)

    @property
    def needs(self) -> str | None:
        """The counts without which there are no weights."""
        return needed_counts(self.weights)

    def plan(
        self, rows: Mapping[str, Rows], context: Context, state: Mapping[str, torch.Tensor]
    ) -> Plan:
        counts = client_counts(context, self.weights)
        weights = counts / counts.sum()
        hides = not weights.all()  # A weight of zero may hide what is not finite.
        if hides:
            require_finite(rows["update"], None, context)
        return Plan(Combination(weights), weights, dict(state), checked=hides)
