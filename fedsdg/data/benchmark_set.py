"""Samples that the server keeps for itself, to judge what clients send (FOCUS)."""

from dataclasses import replace

import numpy as np

from fedsdg.data.datasets import stratified_choice
from fedsdg.data.partition import LEFT_OUT, TRAIN, Partition


def take_benchmark(
    partition: Partition, size: int, generator: np.random.Generator
) -> tuple[np.ndarray, Partition]:
    """Take samples out of a partition, every class in proportion.

    With the fixed test set they are taken from the clients' training samples, of which each client
    and each class keeps at least one; with a test set by seed they are taken from that.

    Args:
        partition: The partition.
        size: Number of samples; fewer are taken where a class would lose its last one.
        generator: Source of randomness.

    Returns:
        The sorted sample indices, and the partition in which they are left out.

    Raises:
        ValueError: The size is below 1, or leaves nothing to train or to evaluate on.
    """
    fixed = partition.facts.get("test") == "fixed"
    pool = partition.global_test()
    if fixed:
        held = np.flatnonzero(partition.split == TRAIN)
        _, first = np.unique(partition.client[held], return_index=True)
        pool = np.delete(held, first)
    most = len(pool) if fixed else len(pool) - 1
    if not 1 <= size <= most:
        raise ValueError(
            f"benchmark_images is {size}; make it 1 to {most}, so that clients train and are tested"
        )
    chosen = pool[stratified_choice(partition.label[pool], size, generator, keep=int(fixed))]
    taken = np.isin(np.arange(len(partition.split)), chosen)
    return chosen, replace(
        partition,
        client=np.where(taken, np.int32(-1), partition.client),
        split=np.where(taken, np.int8(LEFT_OUT), partition.split),
    )
