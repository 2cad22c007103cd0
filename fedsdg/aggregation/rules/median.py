"""The coordinate-wise median of the updates (Yin et al. 2018)."""

from collections.abc import Mapping

import torch

from fedsdg.aggregation.engines.rows import Rows
from fedsdg.aggregation.plans import OrderStatistics, Plan, PlannedRule
from fedsdg.aggregation.types import Context
from fedsdg.parts import part


@part
class CoordinateMedian(PlannedRule):
    """step_j = median_k Delta_kj; of an even number of clients the mean of the two middle values.

    Clients have no weights. (torch.median returns the lower middle value: not the median.)
    """

    def plan(
        self, rows: Mapping[str, Rows], context: Context, state: Mapping[str, torch.Tensor]
    ) -> Plan:
        return Plan(OrderStatistics((rows["update"].shape[0] - 1) // 2), None, dict(state))
