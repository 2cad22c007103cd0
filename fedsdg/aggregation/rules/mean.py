"""The weighted mean of the updates (FedAvg)."""

from collections.abc import Mapping

import torch

from fedsdg.aggregation.engines.rows import Rows
from fedsdg.aggregation.plans import Combination, Plan, PlannedRule
from fedsdg.aggregation.types import Context
from fedsdg.aggregation.uploads import require_finite
from fedsdg.aggregation.weights import Weighed
from fedsdg.parts import part


@part
class Mean(Weighed, PlannedRule):
    """step = sum_k w_k Delta_k with w_k = n_k / sum n (McMahan et al. 2017, Algorithm 1).

    Raises ValueError when the counts n_k sum to zero.
    """

    def plan(
        self, rows: Mapping[str, Rows], context: Context, state: Mapping[str, torch.Tensor]
    ) -> Plan:
        counts = self.counts(context)
        weights = counts / counts.sum()
        hides = not weights.all()  # A weight of zero may hide what is not finite.
        if hides:
            require_finite(rows["update"], None, context)
        return Plan(Combination(weights), weights, dict(state), checked=hides)
