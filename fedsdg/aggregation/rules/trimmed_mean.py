"""The coordinate-wise trimmed mean of the updates (Yin et al. 2018)."""

from collections.abc import Mapping
from typing import Annotated

import torch

from fedsdg.aggregation.engines.rows import Rows
from fedsdg.aggregation.plans import OrderStatistics, Plan, PlannedRule
from fedsdg.aggregation.types import Context
from fedsdg.parts import Range, part


@part
class TrimmedMean(PlannedRule):
    """step_j = mean of Delta_kj over the clients k without the f largest and the f smallest values.

    f = 0 is the uniform mean. Raises ValueError unless M >= 2f + 1. Clients have no weights.
    """

    f: Annotated[int, Range(0)] = 1
    "f, Byzantine clients per round tolerated"

    def require(self, cohort: int, clients: int) -> None:
        if cohort <= 2 * self.f:
            raise ValueError(
                f"the trimmed mean with f={self.f} needs at least 2f+1 = {2 * self.f + 1} clients "
                f"per round and has {cohort}; raise the number of clients or lower f to at most "
                f"{max((cohort - 1) // 2, 0)}"
            )

    def plan(
        self, rows: Mapping[str, Rows], context: Context, state: Mapping[str, torch.Tensor]
    ) -> Plan:
        self.require(rows["update"].shape[0], context.num_clients)
        return Plan(OrderStatistics(self.f), None, dict(state))
