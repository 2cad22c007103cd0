"""What a partition is: who holds which sample in which split.

A partition depends on the data set, the number of clients, the skew and the seed, and never on the
method, so that methods are compared on identical clients.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from fedsdg.data.partition_spec import PartitionSpec
from fedsdg.files.columns import Column

TRAIN, VAL, TEST, GLOBAL_TEST, LEFT_OUT = 0, 1, 2, 3, 4
SPLITS = ("train", "val", "test", "global_test", "left_out")


@dataclass(frozen=True)
class Natural:
    """Which values of a column became clients.

    ``names`` [K]: the value of each client. ``too_small``, ``not_drawn``: how many values did not,
    because they have fewer samples than asked for, or because fewer clients are wanted than there
    are; ``samples_left_out``: how many samples these hold.
    """

    names: tuple[str, ...]
    too_small: int = 0
    not_drawn: int = 0
    samples_left_out: int = 0


@dataclass(frozen=True)
class Partition:
    """The client and the split of every sample of a data set of n samples.

    client:  int32 [n], 0 … K−1, or −1 for the global test set and for what is left out
    split:   int8 [n], TRAIN, VAL, TEST, GLOBAL_TEST or LEFT_OUT
    label:   int64 [n]
    attempts: number of draws it took (1 = the first one had enough samples for every client)
    sha256:  of all of the above and of what it was made from (:meth:`digest`)
    client_domain: int64 [K], the domain of each client where each holds samples of one alone, else
        None (as for data without domains)
    classes, domains: their names by number, where the data have some
    natural: which values of a column are the clients, where they are
    """

    dataset: str
    dataset_sha256: str
    skew: str
    num_clients: int
    seed: int
    client: np.ndarray
    split: np.ndarray
    label: np.ndarray
    num_classes: int
    attempts: int
    spec: PartitionSpec
    sha256: str
    client_domain: np.ndarray | None = None
    classes: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    natural: Natural | None = None

    #: What it adds to the records.
    columns: ClassVar = (
        Column("clients", "domain", "int32", "the only domain that its samples are from"),
    )

    def indices(self, client: int, split: int) -> np.ndarray:
        """Sorted sample indices (int64) of one client's split."""
        if not 0 <= client < self.num_clients:
            raise ValueError(f"client {client} does not exist: there are {self.num_clients}")
        return np.flatnonzero((self.client == client) & (self.split == split))

    def shards(self, split: int) -> list[np.ndarray]:
        """``indices`` of all K clients, in one pass over the samples."""
        held = np.flatnonzero(self.split == split)
        owner = self.client[held]
        counts = np.bincount(owner, minlength=self.num_clients)
        # A stable sort leaves each client's samples in their order.
        return np.split(held[np.argsort(owner, kind="stable")], np.cumsum(counts)[:-1])

    def global_test(self) -> np.ndarray:
        """Sorted sample indices (int64) of the global test set."""
        return np.flatnonzero(self.split == GLOBAL_TEST)

    def sizes(self) -> np.ndarray:
        """Samples [K, 3] of every client in train, validation and test."""
        held = self.client >= 0
        table = np.zeros((self.num_clients, 3), dtype=np.int64)
        np.add.at(table, (self.client[held], self.split[held]), 1)
        return table

    def class_counts(self) -> np.ndarray:
        """Samples [K, classes] of every client, its three splits together."""
        held = self.client >= 0
        table = np.zeros((self.num_clients, self.num_classes), dtype=np.int64)
        np.add.at(table, (self.client[held], self.label[held]), 1)
        return table

    def facts(self) -> dict[str, Any]:
        """What it was made from, in plain types: all but the samples' arrays and ``sha256``."""
        # Partitions without any of these keep the facts, and so the hash, that they always had.
        named: dict[str, Any] = {}
        if self.client_domain is not None:
            named["client_domain"] = self.client_domain.tolist()
        if self.classes:
            named["classes"] = list(self.classes)
        if self.domains:
            named["domains"] = list(self.domains)
        if self.natural is not None:
            named["natural"] = {**asdict(self.natural), "names": list(self.natural.names)}
        if self.spec.test != "by-seed":
            named["test"] = self.spec.test
        return named | {
            "dataset": self.dataset,
            "dataset_sha256": self.dataset_sha256,
            "skew": self.skew,
            "num_clients": self.num_clients,
            "seed": self.seed,
            "num_classes": self.num_classes,
            "attempts": self.attempts,
            "scheme": self.spec.scheme,
            "min_samples": self.spec.min_samples,
            "min_test": self.spec.min_test,
            "retries": self.spec.retries,
            "fractions": list(self.spec.fractions),
            "global_test": self.spec.global_test,
        }

    def digest(self) -> str:
        """sha256 of the facts (canonical JSON) and of the three arrays (little-endian int32)."""
        result = hashlib.sha256(canonical_json(self.facts()))
        for values in (self.client, self.split, self.label):
            result.update(np.ascontiguousarray(values, dtype="<i4").tobytes())
        return result.hexdigest()


def canonical_json(value: object) -> bytes:
    """JSON with sorted keys and no spaces: equal values, equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
