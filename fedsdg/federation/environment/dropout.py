"""Clients that leave: in the middle of a round, or for good. Drawn, and nothing remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsdg.rng import stream


@dataclass(frozen=True, eq=False)
class Dropouts:
    """What becomes of the M clients that were drawn for a round.

    gone: bool [M], left for good in an earlier round, so that they do not even begin;
    leaves: bool [M], begin and leave before they send anything;
    progress: float64 [M] in [0, 1), the share of its steps after which a client leaves, else 1.
    """

    gone: np.ndarray
    leaves: np.ndarray
    progress: np.ndarray

    @property
    def arrives(self) -> np.ndarray:
        """Whose update arrives, bool [M]."""
        return ~(self.gone | self.leaves)


def dropouts(
    seed: int, round_: int, clients: Sequence[int], probability: float, lasting: bool
) -> Dropouts:
    """Which of the clients of round ``round_`` (from 1) leave, and when.

    In passing (``lasting`` false): each client leaves with ``probability`` after a uniform share of
    its steps, and is back for the next round. For good: in each round every client of the
    federation, drawn or not, leaves with ``probability``; the round in which it does is therefore
    geometric, and one that is drawn for that very round leaves in the middle of it.

    Every client's luck comes from a stream of its own, addressed by seed and client, and by the
    round where it is luck anew: it depends neither on who else was drawn nor on earlier calls.

    Raises ValueError for a round below 1 or a probability outside 0 … 1.
    """
    if round_ < 1 or not 0 <= probability <= 1:
        raise ValueError(
            f"dropouts of round {round_} with probability {probability}: rounds count from 1, and "
            "the probability must lie in 0 … 1"
        )
    gone = np.zeros(len(clients), dtype=bool)
    leaves = np.zeros(len(clients), dtype=bool)
    progress = np.ones(len(clients))
    for k, client in enumerate(clients):
        moment, luck = stream("dropout", seed, round_, int(client)).random(2)
        if not lasting:
            leaves[k] = luck < probability
        elif probability > 0:
            # Round 0 is nobody's, so its address is free for what is drawn once.
            last = stream("dropout", seed, 0, int(client)).geometric(probability)
            leaves[k], gone[k] = last == round_, last < round_
        if leaves[k]:
            progress[k] = moment
    return Dropouts(gone, leaves, progress)
