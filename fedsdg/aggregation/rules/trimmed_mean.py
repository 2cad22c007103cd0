"""The coordinate-wise trimmed mean of the updates."""

from __future__ import annotations

from collections.abc import Mapping

from fedsdg.aggregation import types
from fedsdg.aggregation.rows import Rows
from fedsdg.aggregation.types import Context, Plan, Rule, State
from fedsdg.parts import Natural


class TrimmedMean(Rule):
    """step_j = mean of Delta_kj over the clients without the f largest and the f smallest values.

    f = 0 is the uniform mean. ValueError unless M >= 2f + 1. Clients have no weights.
    Source: Yin et al. 2018, Definition 2.
    """

    f: Natural = 1
    "f, Byzantine clients per round tolerated"

    def require(self, cohort: int, clients: int) -> None:
        """Raise ValueError for too few clients."""
        if cohort <= 2 * self.f:
            raise ValueError(
                f"the trimmed mean with f={self.f} needs at least 2f+1 = {2 * self.f + 1} clients "
                f"per round and has {cohort}; raise the number of clients or lower f to at most "
                f"{max((cohort - 1) // 2, 0)}"
            )

    def plan(self, rows: Mapping[str, Rows], context: Context, state: State) -> Plan:
        """Return the plan of the round."""
        return Plan(types.TrimmedMean(self.f), None, state)
