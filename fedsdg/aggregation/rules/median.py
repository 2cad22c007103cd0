"""The coordinate-wise median of the updates."""

from __future__ import annotations

from collections.abc import Mapping

from fedsdg.aggregation import types
from fedsdg.aggregation.rows import Rows
from fedsdg.aggregation.types import Context, Plan, Rule, State


class CoordinateMedian(Rule):
    """step_j = median_k Delta_kj; for an even number of clients the mean of the two middle values.

    Withstands fewer than half of the clients being arbitrary. Clients have no weights.
    Source: Yin et al. 2018, Definition 1.
    """

    def plan(self, rows: Mapping[str, Rows], context: Context, state: State) -> Plan:
        """Return the plan of the round."""
        return Plan(types.TrimmedMean((rows["update"].size - 1) // 2), None, state)
