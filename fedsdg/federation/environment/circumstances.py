"""What befalls clients beside their method: attacks, dropout, time; nothing by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedsdg.federation.environment.attackers import Attack, AttackView
from fedsdg.federation.environment.dropout import dropouts
from fedsdg.federation.environment.timing import Clock, Ending
from fedsdg.models.parameters import Layout
from fedsdg.rng import stream


@dataclass(frozen=True, eq=False)
class Attendance:
    """Who takes part in a round.

    Of the cohort that is drawn, ``present`` are the clients that train, ``passed_over`` those that
    were still busy with an earlier round, ``dropped`` those that left in the middle of this one.
    ``out_of_time`` are those whose time does not suffice for an update: they send nothing, and are
    present if they train what is private. Clients that have left for good before do not appear.
    """

    present: np.ndarray
    passed_over: np.ndarray
    dropped: np.ndarray
    out_of_time: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))


class LossyMessages(Protocol):
    """Updates that do not arrive as they were sent, for want of bits (``Quantisation``)."""

    weak: np.ndarray

    def sent(
        self, updates: Tensor, layout: Layout, seed: int, round_: int, cohort: np.ndarray
    ) -> Tensor:
        """The updates [M, d] of a cohort as they arrive."""
        ...

    def length(self, layout: Layout) -> int:
        """Bytes of one such update."""
        ...


@dataclass(frozen=True)
class Dropout:
    """Each client leaves with ``probability``, in passing or for good (see ``dropouts``)."""

    probability: float
    lasting: bool = False


@dataclass(frozen=True, eq=False)
class Circumstances:
    """The conditions of a run: ``attackers`` [K] with their ``attack``, ``dropout``, ``clock``.

    ``held_out``: bool [K], who never trains; None: nobody. ``quantisation``: of whose updates only
    a few bits are sent. ``facts``: columns [K] that are written
    into clients' rows, such as ``speed``.
    """

    attack: Attack | None = None
    attackers: np.ndarray | None = None
    dropout: Dropout | None = None
    clock: Clock | None = None
    held_out: np.ndarray | None = None
    quantisation: LossyMessages | None = None
    facts: Mapping[str, np.ndarray] = field(default_factory=dict)

    def attendance(self, seed: int, round_: int, drawn: np.ndarray, busy: np.ndarray) -> Attendance:
        """Who of the drawn clients takes part, given who is busy with an earlier round."""
        waiting = np.isin(drawn, busy)
        passed_over, there = drawn[waiting], drawn[~waiting]
        if self.dropout is None:
            return Attendance(there, passed_over, there[:0])
        luck = dropouts(
            seed, round_, there.tolist(), self.dropout.probability, self.dropout.lasting
        )
        return Attendance(there[luck.arrives], passed_over, there[luck.leaves])

    def honest(self, num_clients: int) -> np.ndarray:
        """Who does not attack, bool [K]."""
        if self.attackers is None:
            return np.ones(num_clients, dtype=bool)
        return ~self.attackers

    @property
    def num_held_out(self) -> int:
        """How many clients never train."""
        return 0 if self.held_out is None else int(self.held_out.sum())

    def sent(
        self,
        update: Tensor,
        layout: Layout,
        seed: int,
        round_: int,
        cohort: np.ndarray,
        view: AttackView,
    ) -> Tensor:
        """The updates [M, d] of a cohort as they are sent; attackers see what the others send."""
        if self.quantisation is not None:
            update = self.quantisation.sent(update, layout, seed, round_, cohort)
        if self.attack is None or self.attackers is None:
            return update
        draw = stream("attack", seed, round_)
        return self.attack(update, self.attackers[cohort], view, draw)

    def round_facts(
        self, attendance: Attendance, ending: Ending, moved: Tensor, last: bool
    ) -> dict[str, Any]:
        """Columns of the round's record; ``moved`` [C, d] is how far the server's models went.

        In the ``last`` round what is on its way counts as discarded.
        """
        found: dict[str, Any] = {}
        if self.attackers is not None:
            honest = ~self.attackers[ending.arrived.clients]
            found["attackers"] = int((~honest).sum())
            if len(moved) == 1 and honest.any():
                place = torch.from_numpy(np.flatnonzero(honest)).to(moved.device)
                mean = ending.arrived.update[place].double().mean(0)
                found["honest_distance"] = float((moved[0].double() - mean).norm())
        if self.dropout is not None:
            found["dropped"] = len(attendance.dropped)
        if self.clock is not None:
            found |= {
                "simulated_seconds": ending.end,
                "idle_seconds": ending.idle,
                "arrived": len(ending.arrived),
                "late": ending.late,
                "discarded": ending.discarded + (len(ending.pending) if last else 0),
                "passed_over": len(attendance.passed_over),
            }
        if len(attendance.out_of_time):
            found["out_of_time"] = len(attendance.out_of_time)
        return found
