"""How well a server told attackers from honest clients: precision, recall and delay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Detection:
    """What became of a run's attackers; None where there is nothing to divide by.

    precision: share of the blocked clients that are attackers;
    recall: share of the attackers that took part which are blocked;
    delay: rounds from an attacker's first participation to its block (0: in the same round), mean
    over the attackers that are blocked;
    blocked, wrongly: number of clients blocked at the end, and of honest ones among them.
    """

    precision: float | None
    recall: float | None
    delay: float | None
    blocked: int
    wrongly: int


def detection(blocked: np.ndarray, attackers: np.ndarray, participated: np.ndarray) -> Detection:
    """Judge the blocks of a run of T rounds with K clients.

    blocked: bool [T, K], whether a client is blocked after a round; attackers: bool [K];
    participated: bool [T, K]. Precision and recall are those of the last round; an attacker's block
    is the first round after which it is blocked. An attacker that never took part counts nowhere
    unless it is blocked.

    Raises ValueError for shapes that do not belong together.
    """
    if blocked.ndim != 2 or not len(blocked) or participated.shape != blocked.shape:
        raise ValueError(
            f"blocked {list(blocked.shape)} and participated {list(participated.shape)} must both "
            "be [T, K], with at least one round"
        )
    if attackers.shape != blocked.shape[1:]:
        raise ValueError(
            f"attackers {list(attackers.shape)} must be [{blocked.shape[1]}], one per client"
        )
    at_end = blocked[-1]
    caught = at_end & attackers
    seen = attackers & participated.any(axis=0)
    late = blocked.argmax(axis=0) - participated.argmax(axis=0)
    met = caught & seen
    return Detection(
        precision=_share(caught, at_end),
        recall=_share(met, seen),
        delay=float(late[met].mean()) if met.any() else None,
        blocked=int(at_end.sum()),
        wrongly=int((at_end & ~attackers).sum()),
    )


def detection_of_run(rows: Iterable[Mapping[Any, Any]]) -> Detection:
    """Judge the blocks of a run by its rows of ``clients.parquet``.

    Read are ``round``, ``client``, ``participated``, ``attacker`` and ``blocked`` (after the
    round); a client is blocked or not until a row says otherwise.
    """
    known = list(rows)
    clients = 1 + max((row["client"] for row in known), default=-1)
    rounds = max((row["round"] for row in known), default=0)
    attackers = np.zeros(clients, dtype=bool)
    blocked = np.zeros((rounds, clients), dtype=bool)
    participated = np.zeros((rounds, clients), dtype=bool)
    for row in sorted(known, key=lambda row: row["round"]):
        t, k = row["round"] - 1, row["client"]
        attackers[k] |= bool(row.get("attacker"))
        participated[t, k] = bool(row["participated"])
        if row.get("blocked") is not None:
            blocked[t:, k] = row["blocked"]
    return detection(blocked, attackers, participated)


def _share(part: np.ndarray, whole: np.ndarray) -> float | None:
    return float(part.sum() / whole.sum()) if whole.any() else None
