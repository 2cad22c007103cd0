"""A condition: a share of the clients is asleep in every other round.

Use it with ``conditions: {others: [{type: night, share: 0.5}]}``.
"""

from dataclasses import replace

import numpy as np

from fedsdg.federation.conditions.condition import Condition
from fedsdg.parts import Share
from fedsdg.rng import stream


class Night(Condition, name="night"):
    """A share of the clients sits out even rounds."""

    share: Share = 0.3
    "share of the clients that sleep in even rounds"

    def select_participants(self, setup, t, participation):
        """Return the drawn clients that are awake in round t."""
        if t % 2:
            return participation
        luck = stream("night", setup.data.seed).random(setup.data.num_clients)
        asleep = np.flatnonzero(luck < self.share)
        present = participation.present
        return replace(participation, present=present[~np.isin(present, asleep)])
