"""Clients that leave: in the middle of a round, or for good."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np

from fedsdg.files.columns import Column
from fedsdg.next_federation.conditions.condition import Condition, Participation
from fedsdg.parts import Range, part
from fedsdg.rng import stream

if TYPE_CHECKING:
    from fedsdg.next_federation.setup import Setup

STAYS = 1
LEAVES = 0
GONE = -1


@part
class Dropout(Condition):
    """Clients leave before they send anything."""

    probability: Annotated[float, Range(0, 1)] = 0.1
    "of leaving in mid-round, for each client of a cohort"
    lasting: bool = False
    "for good; every client, drawn or not, then leaves with this probability in each round"

    columns: ClassVar = (Column("rounds", "dropped", "int32", "clients that left in mid-round"),)

    def select_participants(
        self, setup: Setup, t: int, participation: Participation
    ) -> Participation:
        """Leave out clients that leave now, which are counted, and those that left before."""
        clients = participation.present
        fates = np.array([self._fate(setup.seed, t, client) for client in clients.tolist()])
        left = int((fates == LEAVES).sum())
        return replace(
            participation,
            present=clients[fates == STAYS],
            left=participation.left + left,
            row={**participation.row, "dropped": left},
        )

    def _fate(self, seed: int, t: int, client: int) -> int:
        """Return whether a client stays in round t, leaves in it, or is gone before."""
        if not self.lasting:
            _, luck = stream("dropout", seed, t, client).random(2)
            return STAYS if luck >= self.probability else LEAVES
        if self.probability == 0:
            return STAYS
        # What is drawn once for a client is drawn at round 0, which does not exist.
        last = stream("dropout", seed, 0, client).geometric(self.probability)
        if t < last:
            return STAYS
        return LEAVES if t == last else GONE
