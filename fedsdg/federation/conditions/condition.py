"""What a condition may do; each hook is optional."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedsdg.files.columns import Column
from fedsdg.parts import Part

if TYPE_CHECKING:
    from fedsdg.federation.setup import Setup, Updates
    from fedsdg.federation.tasks import Tasks

LARGEST = 1e6
"""Larger values overflow float32."""


@dataclass(frozen=True)
class ClientData:
    """The data of K clients before the first round, as conditions change them."""

    seed: int
    num_classes: int
    owner: np.ndarray
    "[n] the client that holds each sample; -1: none does"
    true_labels: np.ndarray
    "int64 [n]"
    labels: np.ndarray
    "int64 [n], as they are used in training and validation"
    train: list[np.ndarray]
    "sample numbers of each client, sorted as all that follow"
    val: list[np.ndarray]
    "of each client; when conditions have seen them, those on which it is evaluated"
    test: list[np.ndarray]
    "of each client, those on which it is evaluated"
    test_sizes: np.ndarray
    "[K] test samples of each client, with those on which it is not evaluated"
    global_test: np.ndarray
    "of the global test set"
    benchmark: np.ndarray
    "of the server; no client and no test has them"
    class_names: np.ndarray
    "int64 [K, C], the label by which each client calls each class"
    by_class: bool = False
    "whether clients hold the classes in shares of their own, by which test images weigh"
    views: Mapping[int, Any] = field(default_factory=dict)
    "how a client sees images, by its number; others see them as they are"
    facts: Mapping[str, np.ndarray] = field(default_factory=dict)
    "columns [K] of the clients' records, by name"

    @property
    def num_clients(self) -> int:
        """K."""
        return len(self.train)

    def held(self, client: int) -> np.ndarray | None:
        """Return how many samples of each class a client owns, [C]; None: shares are alike."""
        owned = self.true_labels[self.owner == client]
        return np.bincount(owned, minlength=self.num_classes) if self.by_class else None

    def flags(self, name: str) -> np.ndarray:
        """Return a column of the clients' records, bool [K]; False of all if there is none."""
        return self.facts.get(name, np.zeros(self.num_clients, dtype=bool))

    def with_facts(self, **facts: np.ndarray) -> ClientData:
        """Return the data with further columns [K] of the clients' records."""
        return replace(self, facts={**self.facts, **facts})


@dataclass(frozen=True)
class Participation:
    """Which clients take part in a round."""

    present: np.ndarray
    "[M] int64, clients that train"
    left: int = 0
    "clients that downloaded the model and sent nothing"
    silent: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    "clients without time for an update; they are present if they train what is private"
    limits: np.ndarray | None = None
    "[M, stages] steps for which each has time; None: no limit"
    row: Mapping[str, Any] = field(default_factory=dict)
    "columns of the round's record"

    @property
    def sends(self) -> np.ndarray:
        """Bool [M], which of the present clients send an update."""
        return ~np.isin(self.present, self.silent)


class Condition(Part, kind=True):
    """Base of conditions; this one changes nothing."""

    columns: ClassVar[tuple[Column, ...]] = ()
    "columns that it adds to the records"

    def prepare(self, data: ClientData) -> ClientData:
        """Return the clients' data before the first round."""
        return data

    def select_participants(
        self, setup: Setup, t: int, participation: Participation
    ) -> Participation:
        """Return which of the drawn clients train in round t."""
        return participation

    def transform_upload(self, setup: Setup, t: int, sent: Updates, tasks: Tasks) -> Updates:
        """Return what arrives of the updates that the clients of round t send."""
        return sent


def clients_in(share: float, num_clients: int) -> int:
    """Return a share of K clients as a whole number, share · K with halves rounded up.

    Example:
        >>> clients_in(0.5, 5)
        3
    """
    return math.floor(round(share * num_clients, 9) + 0.5)  # 0.35 · 90 is 31.499…


def attackers_in(share: float, num_clients: int) -> int:
    """Return how many of K clients attack, share · K with halves rounded up.

    Args:
        share: That of the attackers, in [0, 1].
        num_clients: K.

    Raises:
        ValueError: A share above 0 is nobody, or nobody is honest.
    """
    attackers = clients_in(share, num_clients)
    if share > 0 and not attackers:
        raise ValueError(
            f"conditions.attack.share is {share}, which is none of {num_clients} clients; "
            f"use at least {1 / num_clients:.3g}, or 0 for no attack"
        )
    if attackers >= num_clients:
        raise ValueError(
            f"conditions.attack.share is {share}, which is all of {num_clients} clients; lower it, "
            "since honest clients alone are evaluated"
        )
    return attackers
