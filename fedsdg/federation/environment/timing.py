"""Simulated time: how fast clients are, when a round ends, and what becomes of late updates.

A client of speed v takes v local steps in a second of a clock that nobody waits for. A round begins
when the last one has ended; its cohort starts at once, and busy clients are passed over. It ends
when everybody has arrived, at a deadline, or with the n-th arrival. What has not arrived by then
is late: it is discarded, or joins the round in which it arrives ("compensation in aggregation").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Clock:
    """The speeds of all clients and the rules of time.

    ``speeds`` [K] in local steps per simulated second. ``deadline``: seconds after which a round
    ends, or None. ``arrivals``: number of updates with which a round ends, or None. ``late``:
    ``compensate`` lets late updates join the round in which they arrive, if they are at most
    ``max_age`` rounds old; ``discard`` drops them at the round's end, and their clients are free.
    ``local_seconds``: instead of a fixed number of epochs each client takes as many steps as fit in
    this time (see ``federation.budget``).
    """

    speeds: np.ndarray
    deadline: float | None = None
    arrivals: int | None = None
    late: str = "compensate"
    max_age: int = 3
    local_seconds: float | None = None

    def steps_that_fit(self, clients: np.ndarray) -> np.ndarray | None:
        """⌊local_seconds · speed⌋ of these clients, int64 [n]; None where epochs limit them."""
        if self.local_seconds is None:
            return None
        # A rounding error must not cost a step that fits exactly.
        steps = np.floor(self.local_seconds * self.speeds[clients] * (1 + 1e-9))
        return np.asarray(steps.astype(np.int64))

    def seconds(self, clients: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """The time [n] in which these clients take their steps [n]."""
        needed = steps / self.speeds[clients]
        if self.local_seconds is None:
            return np.asarray(needed)
        # A step that fits up to rounding does not miss a deadline that is as long.
        return np.asarray(np.minimum(needed, self.local_seconds))


@dataclass(frozen=True)
class Updates:
    """What n clients send: who, in which round they trained, and when it arrives.

    ``norms`` [n] are those of the parameters behind the updates, without the head where the rule
    compares the adapters alone; ``rows`` are ``update`` [n, d] and
    the other uploads [n, width].
    """

    clients: np.ndarray
    born: np.ndarray
    due: np.ndarray
    norms: np.ndarray
    rows: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def update(self) -> Tensor:
        """[n, d]; where nothing is on its way, [0, 0]."""
        return self.rows.get("update", torch.empty(0, 0))

    def __getitem__(self, chosen: np.ndarray) -> Updates:
        """Those where ``chosen`` (bool [n]) is True."""
        place = torch.from_numpy(np.flatnonzero(chosen))
        return Updates(
            self.clients[chosen],
            self.born[chosen],
            self.due[chosen],
            self.norms[chosen],
            {name: value[place.to(value.device)] for name, value in self.rows.items()},
        )

    @classmethod
    def none(cls) -> Updates:
        """Nothing is on its way."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), np.empty(0))

    def tensors(self) -> dict[str, Tensor]:
        """As tensors for a checkpoint; none where nothing is on its way."""
        if not len(self):
            return {}
        facts = {name: getattr(self, name) for name in ("clients", "born", "due", "norms")}
        return {
            **{name: torch.from_numpy(value) for name, value in facts.items()},
            **{f"rows.{name}": value for name, value in self.rows.items()},
        }

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], device: torch.device) -> Updates:
        """What ``tensors`` returned."""
        clients, born, due, norms = (
            tensors[name].numpy() for name in ("clients", "born", "due", "norms")
        )
        rows = {n: v.to(device) for n, v in tensors.items() if n.startswith("rows.")}
        own = {name.removeprefix("rows."): value for name, value in rows.items()}
        return cls(clients, born, due, norms, own)

    def followed_by(self, others: Updates) -> Updates:
        """These, then the others."""
        if not len(self):
            return others
        if not len(others):
            return self
        return Updates(
            np.concatenate([self.clients, others.clients]),
            np.concatenate([self.born, others.born]),
            np.concatenate([self.due, others.due]),
            np.concatenate([self.norms, others.norms]),
            {name: torch.cat([value, others.rows[name]]) for name, value in self.rows.items()},
        )


@dataclass(frozen=True)
class Ending:
    """How a round ended: who arrived, who is still on the way, and the numbers of it.

    ``idle``: seconds for which the clients that trained and arrived in time waited for the end;
    ``late``: how many of the round's own updates did not; ``discarded``: updates dropped for being
    late or too old.
    """

    arrived: Updates
    pending: Updates
    end: float
    late: int
    discarded: int
    idle: float


def end_of_round(
    clock: Clock, round_: int, now: float, sent: Updates, pending: Updates, out_of_time: int = 0
) -> Ending:
    """Let time pass until the round ends.

    ``sent`` are this round's updates, ``pending`` those of earlier ones that are on their way.
    The server does not wait for the clients that are ``out_of_time``; but where there are only
    such, the round takes as long as they had.
    """
    waiting = pending.followed_by(sent)
    if not len(waiting):
        wasted = clock.local_seconds if out_of_time else None
        return Ending(waiting, waiting, now + (wasted or 0.0), 0, 0, 0.0)
    order = np.sort(waiting.due)
    ends = [float(order[-1])]
    if clock.arrivals is not None:
        ends.append(float(order[min(clock.arrivals, len(order)) - 1]))
    if clock.deadline is not None:
        ends.append(now + clock.deadline)
    end = max(now, min(ends))
    there = waiting.due <= end
    old = round_ - waiting.born > clock.max_age
    mine = waiting.born == round_
    left = ~there & ~old
    discarded = int(old.sum())
    if clock.late == "discard":
        discarded += int(left.sum())
        left[:] = False
    return Ending(
        arrived=waiting[there & ~old],
        pending=waiting[left],
        end=end,
        late=int((mine & ~there).sum()),
        discarded=discarded,
        idle=float((end - waiting.due[mine & there]).sum()),
    )


def everything_arrives(sent: Updates) -> Ending:
    """The end of a round where nobody measures time."""
    return Ending(sent, Updates.none(), 0.0, 0, 0, 0.0)
