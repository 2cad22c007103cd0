"""A set of samples that the server keeps for itself, to judge what clients send (FOCUS)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedsdg.data.partition_record import LEFT_OUT, TRAIN, Partition
from fedsdg.data.stratified import stratified_choice


def take_benchmark(
    partition: Partition, size: int, generator: np.random.Generator
) -> tuple[np.ndarray, Partition]:
    """Sorted sample indices of the server's set [size], and the partition without them.

    With ``partition.test: fixed`` they are taken from the clients' training samples, of which each
    client keeps at least one, so that the test set stays whole; with ``by-seed`` they are taken
    from the global test set. Either way every class is in proportion. The partition returned counts
    them as left out, and keeps its ``sha256``.

    Raises ValueError for a size that leaves a client without a training sample or nothing to
    evaluate on, and where a sample of the global test set belongs to a client.
    """
    if size < 1:
        raise ValueError(f"benchmark_images is {size}, but must be at least 1")
    if partition.spec.test == "fixed":
        pool = _spare(partition)
        if size > len(pool):
            raise ValueError(
                f"benchmark_images is {size}, but the clients of {partition.dataset} can give away "
                f"{len(pool)} training samples, each keeping one; lower it"
            )
    else:
        pool = _tested(partition)
        if size >= len(pool):
            raise ValueError(
                f"benchmark_images is {size}, but the global test set of {partition.dataset} has "
                f"{len(pool)} images, and some must be left to evaluate on; lower it"
            )
    chosen = pool[stratified_choice(partition.label[pool], size, generator)]
    client, split = partition.client.copy(), partition.split.copy()
    client[chosen], split[chosen] = -1, LEFT_OUT
    return chosen, replace(partition, client=client, split=split)


def _spare(partition: Partition) -> np.ndarray:
    """Sorted training samples of all clients, without the first one of each."""
    held = np.flatnonzero(partition.split == TRAIN)
    _, first = np.unique(partition.client[held], return_index=True)
    return np.delete(held, first)


def _tested(partition: Partition) -> np.ndarray:
    """The global test set, of which no client may hold a sample."""
    everything = partition.global_test()
    held = everything[partition.client[everything] >= 0]
    if len(held):
        raise ValueError(
            f"the benchmark set would overlap client data: sample {held[0]} of the global test set "
            f"belongs to client {partition.client[held[0]]}; make the partition again with "
            "`fedsdg partition`"
        )
    return everything
