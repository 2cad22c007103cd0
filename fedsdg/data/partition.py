"""Partition a data set among clients, and split every client's samples.

The door to everything about partitions: ``parse_skew``, ``partition_clients``, ``write_partition``
and ``read_partition`` are all importable from here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedsdg.data.allocation import (
    deal_classes,
    deal_dirichlet_per_class,
    deal_dirichlet_per_client,
    deal_domains,
    deal_iid,
    deal_quantity,
    mix,
)
from fedsdg.data.natural import deal_by_column
from fedsdg.data.partition_files import read_partition, write_partition
from fedsdg.data.partition_record import (
    GLOBAL_TEST,
    LEFT_OUT,
    SPLITS,
    TEST,
    TRAIN,
    VAL,
    Natural,
    Partition,
)
from fedsdg.data.partition_spec import PartitionSpec
from fedsdg.data.skew import Skew, parse_skew
from fedsdg.data.stratified import fixed_test_set, strata, stratified_choice

if TYPE_CHECKING:
    from fedsdg.data.datasets import ImageData

__all__ = [
    "GLOBAL_TEST",
    "LEFT_OUT",
    "SPLITS",
    "TEST",
    "TRAIN",
    "VAL",
    "Partition",
    "PartitionSpec",
    "Skew",
    "parse_skew",
    "partition_clients",
    "read_partition",
    "write_partition",
]


def partition_clients(
    data: ImageData,
    *,
    num_clients: int,
    skew: Skew,
    seed: int,
    spec: PartitionSpec,
    generator: np.random.Generator,
) -> Partition:
    """Give every sample of ``data`` to the global test set or to one split of one client.

    The global test set is the official one; where there is none, a part ``spec.global_test`` of the
    samples, stratified by class (and by domain, where the data has domains), removed first: with
    ``spec.test`` "fixed" the samples that ``fixed_test_set`` gives, whatever the seed, the skew and
    the number of clients; with "by-seed" samples drawn from ``generator``. The others are dealt to
    the clients by ``skew``, again and again (at most 1 + ``spec.retries`` times) until every client
    has ``spec.min_samples``; then each client's samples are shuffled and cut into test
    (max(min_test, round(0.3 n))), validation (max(1, round(0.2 n))) and training (the rest). Under
    the skew ``column~NAME`` clients are the values of that column which have enough samples; the
    samples of the others are left out.

    ``seed`` is recorded; all other randomness comes from ``generator``.

    Raises ValueError when the clients cannot all get enough samples, for the skew ``domains`` of
    data without domains, and for a column that the data do not have.
    """
    if num_clients < 1:
        raise ValueError(f"the number of clients must be at least 1, got {num_clients}")
    if skew.kind == "domains" and data.domain is None:
        raise ValueError(
            f"skew 'domains': the data set {data.name!r} has no domains; use digits_domains or "
            "mnist_usps, a set of your own with a domain, or another skew"
        )
    if skew.kind == "column" and skew.value not in data.columns:
        known = ", ".join(map(repr, data.columns)) or "none"
        raise ValueError(
            f"skew {skew.text!r}: the data set {data.name!r} has no column {skew.value!r} of texts "
            f"or whole numbers; its columns are {known}"
        )
    n = len(data.labels)
    client = np.full(n, -1, dtype=np.int32)
    split = np.full(n, GLOBAL_TEST, dtype=np.int8)
    if spec.test == "fixed" or data.official_test.any():
        held_out = fixed_test_set(data, spec.global_test)
    else:
        which = strata(data.labels, data.domain, data.num_classes)
        held_out = stratified_choice(which, round(spec.global_test * n), generator)
    shared = np.setdiff1d(np.arange(n), held_out, assume_unique=True)
    labels = data.labels[shared]
    if skew.kind != "column" and num_clients * spec.min_samples > len(shared):
        raise ValueError(
            f"{data.name!r} has {len(shared)} samples to share, too few for {num_clients} clients "
            f"of at least {spec.min_samples}: use at most {len(shared) // spec.min_samples} "
            "clients, or a smaller min_samples"
        )
    domain = None if data.domain is None else data.domain[shared]
    natural: Natural | None = None
    if skew.kind == "column":
        column = data.columns[str(skew.value)]
        attempts, column = 1, column._replace(codes=column.codes[shared])
        dealt, natural = deal_by_column(column, num_clients, spec.min_samples, generator)
        split[shared[dealt < 0]] = LEFT_OUT
    else:
        dealt, attempts = _deal_until_enough(labels, domain, num_clients, skew, spec, generator)
    client[shared] = dealt
    for k in range(num_clients):
        members = generator.permutation(np.flatnonzero(client == k))
        test, val = split_sizes(len(members), spec)
        split[members[:test]] = TEST
        split[members[test : test + val]] = VAL
        split[members[test + val :]] = TRAIN
    partition = Partition(
        dataset=data.name,
        dataset_sha256=data.sha256,
        skew=skew.text,
        num_clients=num_clients,
        seed=seed,
        client=client,
        split=split,
        label=data.labels.astype(np.int64),
        num_classes=data.num_classes,
        attempts=attempts,
        spec=spec,
        sha256="",
        client_domain=_client_domains(data, client, num_clients),
        classes=data.classes,
        domains=data.domains,
        natural=natural,
    )
    return replace(partition, sha256=partition.digest())


def _client_domains(data: ImageData, client: np.ndarray, num_clients: int) -> np.ndarray | None:
    """The domain of every client [K], where each holds samples of one alone."""
    if data.domain is None:
        return None
    held = client >= 0
    found = np.unique(np.stack([client[held], data.domain[held]]), axis=1)
    return found[1] if found.shape[1] == num_clients else None


def split_sizes(count: int, spec: PartitionSpec) -> tuple[int, int]:
    """Numbers of test and validation samples of a client that holds ``count``; the rest trains.

    Fractions are rounded to the nearest whole, then raised to the minima; validation is lowered
    where training would be left without a sample.
    """
    test = min(max(spec.min_test, round(spec.fractions[2] * count)), count - 2)
    val = min(max(1, round(spec.fractions[1] * count)), count - test - 1)
    return test, val


def _deal_until_enough(
    labels: np.ndarray,
    domain: np.ndarray | None,
    num_clients: int,
    skew: Skew,
    spec: PartitionSpec,
    generator: np.random.Generator,
) -> tuple[np.ndarray, int]:
    best = 0
    for attempt in range(1, spec.retries + 2):
        dealt = _deal(labels, domain, num_clients, skew, spec, generator)
        least = int(np.bincount(dealt, minlength=num_clients).min())
        if least >= spec.min_samples:
            return dealt, attempt
        best = max(best, least)
    remedies = {
        "dirichlet": "fewer clients, a larger α (less skew)",
        "mixed": "fewer clients, a larger share or α (less skew)",
        "quantity": "fewer clients, a larger β (less skew)",
        "domains": "fewer clients",
        "classes": "fewer clients, more classes per client",
        "iid": "fewer clients",
    }
    raise ValueError(
        f"{skew.text}: no draw of {spec.retries + 1} gave each of {num_clients} clients "
        f"{spec.min_samples} samples (the best left a client with {best}); "
        f"use {remedies[skew.kind]}, or a smaller min_samples"
    )


def _deal(
    labels: np.ndarray,
    domain: np.ndarray | None,
    num_clients: int,
    skew: Skew,
    spec: PartitionSpec,
    generator: np.random.Generator,
) -> np.ndarray:
    if skew.kind == "iid":
        return deal_iid(labels, num_clients, generator)
    if skew.kind == "domains":
        assert domain is not None
        return deal_domains(domain, num_clients, generator)
    assert skew.value is not None
    if skew.kind == "quantity":
        return deal_quantity(labels, num_clients, float(skew.value), generator)
    if skew.kind == "classes":
        return deal_classes(labels, num_clients, int(skew.value), generator)
    alpha = float(skew.value)
    scheme = deal_dirichlet_per_client if spec.scheme == "per-client" else deal_dirichlet_per_class
    if skew.share is None:
        return scheme(labels, num_clients, alpha, generator)
    return mix(
        labels,
        num_clients,
        skew.share,
        lambda others: scheme(others, num_clients, alpha, generator),
        generator,
    )
