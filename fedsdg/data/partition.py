"""Partition a data set among clients, and split every client's samples.

A partition depends on the data set, the number of clients, the skew and the seed, never on the
method, so that methods are compared on identical clients.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from fedsdg.data.allocation import ALLOCATIONS
from fedsdg.data.datasets import TEST_SHARE, Column, ImageData, global_test_set
from fedsdg.data.skew import Skew
from fedsdg.errors import require_one_of
from fedsdg.files import canonical_json
from fedsdg.parts import Count, Natural, Part
from fedsdg.rng import stream

TRAIN, VAL, TEST, GLOBAL_TEST, LEFT_OUT = range(5)
SPLITS = ("train", "val", "test", "global_test", "left_out")
#: Training, validation and test shares of a client's samples.
FRACTIONS = (0.5, 0.2, 0.3)


class PartitionSettings(Part):
    """How samples are divided among clients."""

    min_samples: Annotated[int, Field(ge=3)] = 12
    "smallest number of samples of a client"
    min_test: Count = 3
    "smallest number of test samples of a client"
    retries: Natural = 200
    "draws before the partition is given up with an error"
    test: Literal["fixed", "by-seed"] = "fixed"
    """the global test set of data without a test split: `fixed`, a stratified fifth that depends on
    the data alone, or `by-seed`, one for each seed; `federation.global_images` and
    `conditions.benchmark_images` follow it"""

    def check_fields(self) -> None:
        """Check that a client can have training, validation and test samples.

        Raises:
            ValueError: ``min_samples`` is below ``min_test`` + 2.
        """
        if self.min_samples < self.min_test + 2:
            raise ValueError(
                f"min_samples is {self.min_samples}; make it at least {self.min_test + 2}"
            )


@dataclass(frozen=True, eq=False)
class Partition:
    """The client and the split of each of n samples."""

    client: np.ndarray
    "int32 [n], 0 … K − 1; −1: of no client"
    split: np.ndarray
    "int8 [n]: TRAIN, VAL, TEST, GLOBAL_TEST or LEFT_OUT"
    label: np.ndarray
    "int64 [n]"
    facts: Mapping[str, Any]
    "all that it was made from: dataset, skew, num_clients, seed, num_classes, …"

    @property
    def num_clients(self) -> int:
        """Number of clients K."""
        return int(self.facts["num_clients"])

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the facts (canonical JSON) and of the arrays (as int32)."""
        digest = hashlib.sha256(canonical_json(dict(self.facts)).encode())
        for values in (self.client, self.split, self.label):
            digest.update(np.ascontiguousarray(values, dtype="<i4").tobytes())
        return digest.hexdigest()

    def shards(self, split: int) -> list[np.ndarray]:
        """Return the sorted sample indices of all K clients in one split."""
        held = np.flatnonzero(self.split == split)
        owner = self.client[held]
        ends = np.cumsum(np.bincount(owner, minlength=self.num_clients))
        # A stable sort leaves each client's samples in their order.
        return np.split(held[np.argsort(owner, kind="stable")], ends[:-1])

    def global_test(self) -> np.ndarray:
        """Return the sorted sample indices of the global test set."""
        return np.flatnonzero(self.split == GLOBAL_TEST)

    def counts(self, values: np.ndarray, width: int) -> np.ndarray:
        """Return the samples [K, width] of every client by ``split`` (width 3) or by ``label``."""
        held = self.client >= 0
        cells = self.client[held].astype(np.int64) * width + values[held]
        return np.bincount(cells, minlength=self.num_clients * width).reshape(-1, width)

    def untrained_classes(self) -> list[str]:
        """Return the classes that no client trains on, by name.

        There are such classes if a natural partition leaves out all clients that have them.
        """
        names = self.facts.get("classes") or range(self.facts["num_classes"])
        missing = np.setdiff1d(self.label, self.label[self.split == TRAIN])
        return [str(names[label]) for label in missing]


def partition_clients(
    data: ImageData, num_clients: int, skew: Skew, seed: int, settings: PartitionSettings
) -> Partition:
    """Assign every sample to the global test set or to one split of one client.

    First the global test set is set aside. The other samples are allocated by ``skew``, at most
    1 + ``retries`` times, until every client has ``min_samples``. Then each client's n_k samples
    are shuffled and cut into test max(min_test, round(0.3 n_k)), validation max(1, round(0.2 n_k))
    and training. A class that no client would train on gets a training sample by an exchange.

    Args:
        data: The data set.
        num_clients: Number of clients K.
        skew: How clients differ.
        seed: Everything is drawn from the stream ``partition`` of this seed.
        settings: Smallest sizes, retries and the kind of test set.

    Returns:
        The partition.

    Raises:
        ValueError: The clients cannot all get enough samples, or a column does not exist.

    Example:
        >>> from fedsdg.data.reading import load
        >>> from fedsdg.data.skew import parse_skew
        >>> from fedsdg.data.sources import built_in
        >>> data, skew = load(built_in("digits")), parse_skew("iid")
        >>> made = partition_clients(data, 20, skew, 0, PartitionSettings())
        >>> made.counts(made.split, 3)[0].tolist()
        [36, 14, 22]
    """
    generator = stream("partition", seed)
    test_generator = generator if settings.test == "by-seed" else None
    global_test = global_test_set(data.labels, data.test, test_generator)
    client = np.full(len(data.labels), -1, dtype=np.int32)
    split = np.full(len(data.labels), LEFT_OUT, dtype=np.int8)
    split[global_test] = GLOBAL_TEST
    shared = np.flatnonzero(split == LEFT_OUT)
    # Partitions by seed were made before there was a choice.
    facts = {key: value for key, value in dict(settings).items() if value != "by-seed"}
    if data.classes:
        facts["classes"] = list(data.classes)
    if skew.kind == "column":
        require_one_of(data.columns, skew.column, f"{data.name!r} has no column")
        codes, names = data.columns[skew.column]
        column = Column(codes[shared], names)
        allocated = _natural_clients(column, num_clients, settings, generator)
    else:
        allocated = _allocate(data.labels[shared], num_clients, skew, settings, generator)
    client[shared] = allocated[0]
    facts |= allocated[1]
    for k in range(num_clients):
        members = generator.permutation(np.flatnonzero(client == k))
        test, val = split_sizes(len(members), settings.min_test)
        split[members] = np.repeat([TEST, VAL, TRAIN], [test, val, len(members) - test - val])
    _train_on_every_class(data.labels, client, split)
    facts |= {
        "dataset": data.name,
        "dataset_sha256": data.sha256,
        "skew": skew.text,
        "num_clients": num_clients,
        "seed": seed,
        "num_classes": data.num_classes,
        "scheme": "per-class",
        "fractions": list(FRACTIONS),
        "global_test": TEST_SHARE,
    }
    return Partition(client, split, data.labels, facts)


def split_sizes(count: int, min_test: int) -> tuple[int, int]:
    """Return the numbers of test and validation samples of a client with ``count`` samples."""
    test = min(max(min_test, round(FRACTIONS[2] * count)), count - 2)
    val = min(max(1, round(FRACTIONS[1] * count)), count - test - 1)
    return test, val


def large_enough(column: Column, min_samples: int) -> np.ndarray:
    """Return the sorted codes of the values of a column that have enough samples for a client."""
    counts = np.bincount(column.codes[column.codes >= 0], minlength=len(column.names))
    return np.flatnonzero(counts >= min_samples)


def _natural_clients(
    column: Column, num_clients: int, settings: PartitionSettings, generator: np.random.Generator
) -> tuple[np.ndarray, dict[str, Any]]:
    """Make values of a column clients; return the client of each sample (−1: none), and facts."""
    able = large_enough(column, settings.min_samples)
    if num_clients > len(able):
        raise ValueError(
            f"only {len(able)} values of the column have {settings.min_samples} samples, too few "
            f"for {num_clients} clients; lower federation.clients or partition.min_samples"
        )
    chosen = able
    if num_clients < len(able):
        chosen = np.sort(generator.choice(able, num_clients, replace=False))
    # The last entry is for samples without a value, whose code is −1.
    number = np.full(len(column.names) + 1, -1, dtype=np.int32)
    number[chosen] = np.arange(num_clients)
    natural = {
        "names": [column.names[code] for code in chosen],
        "too_small": len(large_enough(column, 1)) - len(able),
        "not_drawn": len(able) - num_clients,
        "samples_left_out": int((number[column.codes] < 0).sum()),
    }
    return number[column.codes], {"attempts": 1, "natural": natural}


def _allocate(
    labels: np.ndarray, num_clients: int, skew: Skew, settings: PartitionSettings, generator: Any
) -> tuple[np.ndarray, dict[str, Any]]:
    """Draw until every client has enough; return the client of each sample, and facts."""
    if len(labels) < num_clients * settings.min_samples:
        raise ValueError(
            f"{len(labels)} samples are too few for {num_clients} clients of at least "
            f"{settings.min_samples}: use fewer clients, or a smaller min_samples"
        )
    for attempt in range(1, settings.retries + 2):
        client = ALLOCATIONS[skew.kind](labels, num_clients, skew.number, generator)
        if np.bincount(client, minlength=num_clients).min() >= settings.min_samples:
            return client, {"attempts": attempt}
    raise ValueError(
        f"{skew.text}: no draw of {settings.retries + 1} gave each client {settings.min_samples} "
        "samples; use fewer clients, less skew, or a smaller min_samples"
    )


def _train_on_every_class(label: np.ndarray, client: np.ndarray, split: np.ndarray) -> None:
    """Exchange samples within a client, so that every class of the clients is trained on."""
    held = client >= 0
    for missing in np.setdiff1d(label[held], label[split == TRAIN]):
        counts = np.bincount(label[split == TRAIN], minlength=label.max() + 1)
        # Never the last training sample of another class.
        spare = (split == TRAIN) & (counts[label] > 1)
        for sample in np.flatnonzero(held & (label == missing)):
            partners = np.flatnonzero(spare & (client == client[sample]))
            if len(partners):
                split[[sample, partners[0]]] = split[[partners[0], sample]]
                break
