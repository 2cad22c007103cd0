"""The coordinate-wise trimmed mean of the updates (Yin et al. 2018)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fedsdg.aggregation.arguments import check_whole_number
from fedsdg.aggregation.engines.rows import Rows
from fedsdg.aggregation.plans import OrderStatistics, Plan, PlannedRule
from fedsdg.aggregation.types import Context


@dataclass(frozen=True)
class TrimmedMean(PlannedRule):
    """step_j = mean of Delta_kj over the clients k without the f largest and the f smallest values.

    f: number of Byzantine clients to withstand per round; f = 0 is the uniform mean. Raises
    ValueError unless M >= 2f + 1. Clients have no weights.
    """

    f: int = 1

    def __post_init__(self) -> None:
        check_whole_number("f", self.f, 0)

    def plan(
        self, rows: Mapping[str, Rows], context: Context, state: Mapping[str, torch.Tensor]
    ) -> Plan:
        size = rows["update"].shape[0]
        if size <= 2 * self.f:
            raise ValueError(
                f"the trimmed mean with f={self.f} needs at least 2f+1 = {2 * self.f + 1} clients "
                f"per round and has {size}; raise the number of clients or lower f to at most "
                f"{(size - 1) // 2}"
            )
        return Plan(OrderStatistics(self.f), None, dict(state))
