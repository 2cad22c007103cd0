"""What befalls clients beside their method: attacks, dropout, time; nothing by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedsdg.federation.timing import Clock, Ending
from fedsdg.rng import stream


@dataclass(frozen=True)
class Attendance:
    """Who takes part in a round.

    ``drawn`` are the clients of the cohort, ``present`` those that train and send something.
    ``passed_over`` were still busy with an earlier round, ``dropped`` left in the middle of this
    one, and ``gone`` [K] says who will not come back.
    """

    drawn: np.ndarray
    present: np.ndarray
    passed_over: np.ndarray
    dropped: np.ndarray
    gone: np.ndarray


class Dropout(Protocol):
    """Clients that leave: ``leaves(seed, round, clients)`` is a bool array, ``lasting`` whether
    they stay away."""

    lasting: bool

    def leaves(self, seed: int, round_: int, clients: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class View:
    """What an attacker sees of a round.

    ``start`` [M, d] is what the cohort has downloaded, ``sizes`` [M] their training samples;
    ``previous_step`` [d] is how far the server's model moved in the last round, None in the first.
    """

    round: int
    start: Tensor
    sizes: np.ndarray
    previous_step: Tensor | None


class Attack(Protocol):
    """Changes the rows of updates [M, d] where ``attackers`` [M] is True, and no others."""

    def __call__(
        self, updates: Tensor, attackers: np.ndarray, view: View, generator: np.random.Generator
    ) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Circumstances:
    """The conditions of a run: ``attackers`` [K] with their ``attack``, ``dropout``, ``clock``.

    ``facts``: columns [K] that are written into clients' rows, such as ``speed``.
    """

    attack: Attack | None = None
    attackers: np.ndarray | None = None
    dropout: Dropout | None = None
    clock: Clock | None = None
    facts: Mapping[str, np.ndarray] = field(default_factory=dict)

    def attendance(
        self, seed: int, round_: int, drawn: np.ndarray, *, busy: np.ndarray, gone: np.ndarray
    ) -> Attendance:
        """Who of the drawn clients takes part, given who is busy and who has left for good."""
        waiting = np.isin(drawn, busy)
        there = drawn[~waiting & ~gone[drawn]]
        left = np.zeros(len(there), dtype=bool)
        if self.dropout is not None:
            left = self.dropout.leaves(seed, round_, there)
            if self.dropout.lasting:
                gone = gone.copy()
                gone[there[left]] = True
        return Attendance(drawn, there[~left], drawn[waiting], there[left], gone)

    def in_time(
        self, cohort: np.ndarray, batches: Sequence[Sequence[np.ndarray]]
    ) -> list[list[np.ndarray]]:
        """The batches that each client has time for."""
        if self.clock is None:
            return [list(own) for own in batches]
        return [
            list(own[: self.clock.steps_that_fit(int(client), [len(batch) for batch in own])])
            for client, own in zip(cohort, batches, strict=True)
        ]

    def honest(self, num_clients: int) -> np.ndarray:
        """Who does not attack, bool [K]."""
        if self.attackers is None:
            return np.ones(num_clients, dtype=bool)
        return ~self.attackers

    def sent(self, update: Tensor, cohort: np.ndarray, view: View, seed: int) -> Tensor:
        """The updates [M, d] as they are sent."""
        if self.attack is None or self.attackers is None or not self.attackers[cohort].any():
            return update
        return self.attack(update, self.attackers[cohort], view, stream("attack", seed, view.round))

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
                mean = ending.arrived.rows["update"][place].double().mean(0)
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
        return found
