"""A share of the clients attacks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedsdg.files.columns import Column
from fedsdg.next_federation.conditions.condition import ClientData, Condition
from fedsdg.rng import stream

if TYPE_CHECKING:
    from torch import Tensor

    from fedsdg.next_federation.attacks import Attack, AttackView
    from fedsdg.next_federation.setup import Setup, Updates
    from fedsdg.next_federation.tasks import Tasks


@dataclass(frozen=True)
class Attackers(Condition):
    """A share of the clients attacks: the same in every round, and part of every larger share."""

    attack: Attack
    share: float
    "share of the clients, rounded to whole clients (halves up)"

    columns: ClassVar[tuple[Column, ...]] = (
        Column("rounds", "attackers", "int32", "attackers among the updates that arrived"),
        Column(
            "rounds",
            "honest_distance",
            "float64",
            "L2 distance from the server's step to the mean of the honest updates",
        ),
        Column("clients", "attacker", "bool", "whether it attacks"),
    )

    def count(self, num_clients: int) -> int:
        """Return how many of K clients attack, share * K with halves rounded up.

        Raises:
            ValueError: A share above 0 is nobody, or nobody is honest.
        """
        attackers = math.floor(self.share * num_clients + 0.5)
        if self.share > 0 and not attackers:
            raise ValueError(
                f"conditions.attack.share is {self.share}, which is none of {num_clients} clients; "
                f"use at least {1 / num_clients:.3g}, or 0 for no attack"
            )
        if attackers >= num_clients:
            raise ValueError(
                f"conditions.attack.share is {self.share}, which is all of {num_clients} clients; "
                "lower it, since honest clients alone are evaluated"
            )
        return attackers

    def prepare(self, data: ClientData) -> ClientData:
        """Choose the attackers, and change the labels on which they train."""
        count = self.count(data.num_clients)
        chosen = stream("attack", data.seed).permutation(data.num_clients)[:count]
        labels = data.labels.copy()
        for client in chosen.tolist():
            shard = data.train[client]
            labels[shard] = self.attack.labels(labels[shard], data.num_classes)
        attacker = np.isin(np.arange(data.num_clients), chosen)
        return replace(data, labels=labels).with_facts(attacker=attacker)

    def transform_upload(self, setup: Setup, t: int, sent: Updates, tasks: Tasks) -> Updates:
        """Replace the updates of attackers, who see what all others send."""
        from fedsdg.next_federation.attacks import AttackView

        attackers = setup.facts["attacker"][sent.clients]
        if not attackers.any():
            return sent
        view = AttackView(
            updates=sent.update,
            attackers=attackers,
            weights=_expected_weights(setup, sent.clients),
            start=tasks.start,
            generator=stream("attack", setup.seed, t),
        )
        update = sent.update.clone()
        update[view.positions] = self._tampered(view)
        return replace(sent, rows={**sent.rows, "update": update})

    def _tampered(self, view: AttackView) -> Tensor:
        """Return what the attack makes of the updates, if it is of their shape."""
        row = view.updates.shape[1:]
        rows = (int(view.attackers.sum()), *row)
        tampered = self.attack.tamper(view)
        if tuple(tampered.shape) not in (rows, tuple(row)):
            raise ValueError(
                f"the attack {type(self.attack).__name__} returned {list(tampered.shape)} for "
                f"{rows[0]} attackers; return {list(rows)}, or one row {list(row)}"
            )
        return tampered.to(view.updates)


def _expected_weights(setup: Setup, clients: np.ndarray) -> np.ndarray:
    """Return the weights [M] that attackers expect: by the counts that the rule needs, or equal."""
    counts = {
        "num_samples": setup.sizes[clients],
        "num_batches": setup.batches_per_epoch(clients),
    }
    shares = counts.get(setup.rule.needs or "", np.ones(len(clients)))
    return np.asarray(shares / shares.sum())
