"""No aggregation: the server's model stays as it is (local-only training)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedsdg.aggregation.rows import Rows
from fedsdg.aggregation.types import Combination, Context, Plan, Rule, State


class NoAggregation(Rule):
    """step = 0; clients have no weights."""

    def plan(self, rows: Mapping[str, Rows], context: Context, state: State) -> Plan:
        """Return the plan of the round."""
        return Plan(Combination(np.zeros(rows["update"].size)), None, state)
