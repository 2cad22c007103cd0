"""What a server is told of its clients beforehand, where a method assumes that it knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from torch import Tensor

from fedsdg.aggregation.types import Rule
from fedsdg.data.label_clusters import label_clusters
from fedsdg.data.partition_record import TRAIN, Partition

#: (rule, its state before the first round, the partition) -> the state with what is known.
Knowledge = Callable[[Rule, Mapping[str, Tensor], Partition], dict[str, Tensor]]


def known_clusters(count: int, assignment: str) -> Knowledge:
    """The cluster of every client where ``assignment`` is "known"; else nothing.

    Its domain where every client has one, else clusters of the shares of true training labels.
    """

    def tell(rule: Rule, state: Mapping[str, Tensor], partition: Partition) -> dict[str, Tensor]:
        if assignment != "known":
            return dict(state)
        told: dict[str, Tensor] = rule.with_clusters(state, clusters(partition, count))  # type: ignore[attr-defined]
        return told

    return tell


def clusters(partition: Partition, count: int) -> np.ndarray:
    """[K] the cluster of every client."""
    if partition.client_domain is not None:
        return partition.client_domain
    return label_clusters(partition.label, partition.shards(TRAIN), count, partition.num_classes)
