"""No aggregation: the server's model stays as it is (local-only training)."""

from collections.abc import Mapping

import torch

from fedsdg.aggregation.engines.rows import Rows
from fedsdg.aggregation.plans import Nothing, Plan, PlannedRule
from fedsdg.aggregation.types import Aggregate, Context
from fedsdg.aggregation.uploads import require_finite
from fedsdg.parts import part


@part
class NoAggregation(PlannedRule):
    """step = 0, no weights. `update` may be [M, 0], or absent where nothing is communicated."""

    def plan(
        self, rows: Mapping[str, Rows], context: Context, state: Mapping[str, torch.Tensor]
    ) -> Plan:
        require_finite(rows["update"], None, context)
        return Plan(Nothing(), None, dict(state), checked=True)

    def __call__(
        self,
        uploads: Mapping[str, torch.Tensor],
        context: Context,
        state: Mapping[str, torch.Tensor],
    ) -> Aggregate:
        if "update" not in uploads:
            return Aggregate(torch.zeros(1, 0), None, dict(state), {})
        return super().__call__(uploads, context, state)
