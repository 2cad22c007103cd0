"""Clients of different speed on a simulated clock.

A client of speed v takes v local steps in a second. A round begins when the last one has ended;
clients that are still busy are passed over. It ends when all updates are there, at a deadline, or
with so many arrivals. What comes later joins the round in which it arrives, or is discarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedsdg.federation.conditions.condition import LARGEST, ClientData, Condition
from fedsdg.federation.phases import Phase
from fedsdg.files.columns import Column
from fedsdg.parts import Count
from fedsdg.rng import stream

if TYPE_CHECKING:
    from fedsdg.federation.setup import Setup, Updates


class Compute(Condition):
    """Clients of different speed, on a simulated clock.

    A round ends when all updates of its cohort are there, or earlier, after so many seconds or with
    so many updates.
    """

    slowest: Annotated[float, Field(ge=1e-06, le=LARGEST)] = 1.0
    """local steps in a simulated second of the slowest; a client's speed is drawn log-uniformly
    between this and the fastest"""
    fastest: Annotated[float, Field(ge=1e-06, le=LARGEST)] = 4.0
    "local steps in a simulated second of the fastest"
    local_seconds: Annotated[float, Field(ge=1e-06, le=1000000000.0)] | None = None
    """clients train for so many seconds in a round; null: for `training.epochs`. A client takes
    ⌊`local_seconds` · speed⌋ steps of one gradient each. Phases, models of its own and passes that
    measure gradients share them in proportion to their usual lengths, at least one step each. A
    client with fewer steps than that trains only what it keeps private, and sends nothing"""
    max_epochs: Count = 10
    """with `local_seconds`: takes the place of `training.epochs`, also where a method prescribes
    them; all steps of a client in a round are at most those of so many epochs"""
    deadline: Annotated[float, Field(ge=1e-06, le=1000000000.0)] | None = None
    "a round ends after so many seconds; null: when all updates are there"
    arrivals: Count | None = None
    "a round ends with so many updates; null: with all of them"
    late: Literal["compensate", "discard"] = "compensate"
    """an update that comes later: `compensate` lets it join the round in which it arrives,
    `discard` throws it away"""
    max_age: Count = 5
    "rounds after which a late update is thrown away all the same; SCAFFOLD keeps the new c_i"

    columns: ClassVar = (
        Column("rounds", "simulated_seconds", "float64", "simulated time at the round's end"),
        Column("rounds", "idle_seconds", "float64", "seconds for which those in time waited"),
        Column("rounds", "arrived", "int32", "updates that the round took in"),
        Column("rounds", "late", "int32", "updates that came after the round's end"),
        Column("rounds", "discarded", "int32", "updates that were thrown away"),
        Column("rounds", "passed_over", "int32", "clients that were drawn while still busy"),
        Column("rounds", "out_of_time", "int32", "clients with too little time for an update"),
        Column("clients", "speed", "float64", "local steps in a simulated second"),
        Column("clients", "age", "int32", "by how many rounds its update was late"),
        Column("clients", "out_of_time", "bool", "trained in private only, and sent nothing"),
    )

    def check_fields(self) -> None:
        """Refuse ends in the wrong order, and updates that are never in time."""
        if self.slowest > self.fastest:
            raise ValueError(
                f"slowest = {self.slowest} is above fastest = {self.fastest} steps in a second; "
                "exchange them"
            )
        if (self.local_seconds or 0.0) > (self.deadline or np.inf):
            raise ValueError(
                f"clients train for local_seconds = {self.local_seconds}, after the deadline = "
                f"{self.deadline} of the round; no update could ever be in time"
            )

    @property
    def compensates(self) -> bool:
        """Whether updates may be late and count less for it."""
        return self.late == "compensate" and (
            self.deadline is not None or self.arrivals is not None
        )

    def prepare(self, data: ClientData) -> ClientData:
        """Draw the speeds, which are the same in all rounds."""
        luck = stream("speed", data.seed).random(data.num_clients)
        return data.with_facts(speed=self.slowest * (self.fastest / self.slowest) ** luck)

    def steps_in_time(self, speeds: np.ndarray, batches: np.ndarray) -> np.ndarray:
        """Return the steps [n] of a round for clients of these speeds and batches of an epoch."""
        # A rounding error must not cost a step that fits exactly.
        fit = np.floor((self.local_seconds or 0.0) * speeds * (1 + 1e-9)).astype(np.int64)
        return np.minimum(fit, self.max_epochs * batches)

    def limits(self, setup: Setup, clients: np.ndarray) -> np.ndarray | None:
        """Divide the time of clients [n] among the stages of their round.

        Returns:
            int64 [n, stages] steps; with a 0 in its row a client sends nothing. None if epochs,
            and not time, limit the clients.
        """
        if self.local_seconds is None:
            return None
        batches = setup.batches_per_epoch(clients)
        steps = self.steps_in_time(setup.data.facts["speed"][clients], batches)
        pairs = zip(batches.tolist(), steps.tolist(), strict=True)
        rows = [_divided(setup.stages, per_epoch, most) for per_epoch, most in pairs]
        return np.array(rows, dtype=np.int64).reshape(len(rows), len(setup.stages))

    def require_time(self, setup: Setup) -> None:
        """Raise ValueError if no client could ever send an update in time."""
        clients = setup.trainable[:1] if setup.sharing.central else setup.trainable
        speeds = setup.data.facts["speed"][clients]
        batches = setup.batches_per_epoch(clients)
        limits = self.limits(setup, clients)
        if limits is not None:
            if (limits == 0).any(axis=1).all():
                most = int(self.steps_in_time(speeds, batches).max())
                raise ValueError(
                    f"conditions.compute.local_seconds = {self.local_seconds:g} gives each client "
                    f"at most {most} local steps in a round, but an update takes "
                    f"{limits.shape[1]} or more; raise it, max_epochs or the clients' speeds"
                )
            return
        if setup.sharing.central:
            fewest = np.sort(setup.sizes)[: setup.schedule.clients_per_round].sum(keepdims=True)
            batches = -(-fewest // (setup.schedule.batch_size or fewest))
        # A stopping rule may end after the first epoch, before and after which it measures.
        least = sum(min(3, 2 * one.epochs) if one.inexact else one.epochs for one in setup.stages)
        soonest = float((least * batches / speeds).min())
        if self.deadline is not None and soonest > self.deadline:
            raise ValueError(
                f"conditions.compute.deadline is {self.deadline} simulated seconds, but the "
                f"soonest update takes {soonest:.3g}; raise the deadline or the clients' speeds"
            )

    def seconds(self, speeds: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Return the time [n] that clients of these speeds need for their steps [n]."""
        # A step that fits up to rounding does not miss a deadline that is as long.
        return np.minimum(steps / speeds, self.local_seconds or np.inf)

    def end_round(
        self, t: int, now: float, waiting: Updates, silent: int
    ) -> tuple[Updates, Updates, float, dict[str, Any]]:
        """Let time pass until round t ends.

        The server does not wait for clients without time for an update; if there are only such, the
        round takes as long as they had.

        Args:
            t: The round.
            now: Simulated seconds at its beginning.
            waiting: Updates of this round and those still on their way.
            silent: Number of clients without time for an update.

        Returns:
            The updates that arrived, those still on their way, the seconds at the end, and columns
            of the record.
        """
        if not len(waiting):
            wasted = (self.local_seconds or 0.0) if silent else 0.0
            row = {"idle_seconds": 0.0, "late": 0, "discarded": 0}
            return waiting, waiting, now + wasted, row
        arrivals = np.sort(waiting.due)
        ends = [float(arrivals[-1])]
        if self.arrivals is not None:
            ends.append(float(arrivals[min(self.arrivals, len(arrivals)) - 1]))
        if self.deadline is not None:
            ends.append(now + self.deadline)
        end = max(now, min(ends))
        in_time = waiting.due <= end
        new = waiting.born == t
        thrown = t - waiting.born > self.max_age
        if self.late == "discard":
            thrown |= ~in_time
        left = ~in_time & ~thrown
        row = {
            "idle_seconds": float((end - waiting.due[new & in_time]).sum()),
            "late": int((new & ~in_time).sum()),
            "discarded": int(thrown.sum()),
        }
        return waiting.take(in_time & ~thrown), waiting.take(left), end, row


@lru_cache(maxsize=4096)
def _divided(stages: tuple[Phase, ...], batches: int, steps: int) -> list[int]:
    """Divide the steps of a client; if there are fewer than stages, what is private gets them."""
    # A stopping rule measures a gradient before each epoch.
    nominal = [(2 if stage.inexact else 1) * stage.epochs * batches for stage in stages]
    chosen = list(range(len(stages)))
    if steps < len(stages):
        private = [
            k for k, stage in enumerate(stages) if stage.second or stage.turns == (("private",),)
        ]
        chosen = private[:steps]
    shares = in_proportion([nominal[k] for k in chosen], steps)
    given = dict(zip(chosen, shares, strict=True))
    return [given.get(k, 0) for k in range(len(stages))]


def in_proportion(nominal: Sequence[int], steps: int) -> list[int]:
    """Divide steps in proportion to nominal numbers of steps, with at least one for each part.

    s_i = max(1, floor(m * nominal_i / sum nominal)) with the greatest m for which sum s_i <= steps.

    Args:
        nominal: Steps of each part if time does not limit them.
        steps: Steps to divide, at least as many as there are parts.
    """
    total = sum(nominal)
    most = min(steps, total)
    shares = ([max(1, m * one // total) for one in nominal] for m in range(most, -1, -1))
    return next(divided for divided in shares if sum(divided) <= steps)
