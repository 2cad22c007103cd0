"""A set of samples that the server keeps for itself, to judge what clients send (FOCUS)."""

from __future__ import annotations

import numpy as np

from fedsdg.data.partition_record import Partition
from fedsdg.data.stratified import stratified_choice


def take_benchmark(
    partition: Partition, size: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Sample indices of the server's set [size], and of the global test set that is left.

    Both are sorted and disjoint, and are the global test set together; the server's set has every
    class in proportion. What is evaluated must be the second one alone.

    Raises ValueError for a size that leaves nothing to evaluate on, and where a sample of the
    global test set belongs to a client.
    """
    everything = partition.global_test()
    if size < 1:
        raise ValueError(f"benchmark_images is {size}, but must be at least 1")
    if size >= len(everything):
        raise ValueError(
            f"benchmark_images is {size}, but the global test set of {partition.dataset} has "
            f"{len(everything)} images, and some must be left to evaluate on; lower it"
        )
    held = everything[partition.client[everything] >= 0]
    if len(held):
        raise ValueError(
            f"the benchmark set would overlap client data: sample {held[0]} of the global test set "
            f"belongs to client {partition.client[held[0]]}; make the partition again with "
            "`fedsdg partition`"
        )
    chosen = stratified_choice(partition.label[everything], size, generator)
    left = np.ones(len(everything), dtype=bool)
    left[chosen] = False
    return everything[chosen], everything[left]
