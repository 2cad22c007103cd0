"""Clients that leave: in the middle of a round, or for good."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedsdg.federation.conditions.condition import Condition, Participation
from fedsdg.files.columns import Column
from fedsdg.parts import Share
from fedsdg.rng import stream

if TYPE_CHECKING:
    from fedsdg.federation.setup import Setup


class Dropout(Condition):
    """Clients leave before they send anything."""

    probability: Share = 0.1
    "of leaving in mid-round, for each client of a cohort"
    lasting: bool = False
    "for good; every client, drawn or not, then leaves with this probability in each round"

    columns: ClassVar = (Column("rounds", "dropped", "int32", "clients that left in mid-round"),)

    def select_participants(
        self, setup: Setup, t: int, participation: Participation
    ) -> Participation:
        """Leave out clients that leave now, which are counted, and those that left before."""
        clients = participation.present
        ends = np.array([self._end(setup.data.seed, t, client) for client in clients.tolist()])
        left = int((ends == t).sum())
        return replace(
            participation,
            present=clients[ends > t],
            left=participation.left + left,
            row={**participation.row, "dropped": left},
        )

    def _end(self, seed: int, t: int, client: int) -> float:
        """Return the round, as far as it is known in round t, in which a client leaves."""
        if self.lasting and self.probability:
            # What is drawn once for a client is drawn at round 0, which does not exist.
            return stream("dropout", seed, 0, client).geometric(self.probability)
        _, luck = stream("dropout", seed, t, client).random(2)
        return t if luck < self.probability else np.inf
