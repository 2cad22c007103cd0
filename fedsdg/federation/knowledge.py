"""What a server is told of its clients beforehand, where a method assumes that it knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from torch import Tensor

from fedsdg.aggregation.types import Rule
from fedsdg.data.label_clusters import label_clusters
from fedsdg.data.partition_record import TRAIN, Partition

#: (rule, its state before the first round, the partition, the group [K] of clients that differ, -1
#: of those that do not) -> the state with what is known.
Knowledge = Callable[[Rule, Mapping[str, Tensor], Partition, np.ndarray | None], dict[str, Tensor]]


def known_clusters(clusters: int, assignment: str, nearness: str = "models") -> Knowledge:
    """Which of ``clusters`` every client is in where ``assignment`` is "known", its labels where
    ``nearness`` is "labels"; else nothing.

    The groups of clients that differ where there are some (``difference_clusters``), else its
    domain where every client has one, else clusters of the shares of true training labels. Labels
    are told as how many of its training samples are of each class.
    """

    def tell(
        rule: Rule,
        state: Mapping[str, Tensor],
        partition: Partition,
        group: np.ndarray | None = None,
    ) -> dict[str, Tensor]:
        told = dict(state)
        if assignment == "known":
            if group is None or (group < 0).all():
                known = natural_clusters(partition, clusters)
            else:
                known = difference_clusters(group, clusters)
            told = rule.with_clusters(told, known)  # type: ignore[attr-defined]
        if nearness == "labels":
            told = rule.with_labels(told, label_counts(partition))  # type: ignore[attr-defined]
        return told

    return tell


def label_counts(partition: Partition) -> np.ndarray:
    """[K, classes] how many training samples of each class every client has, by true labels."""
    own = [partition.label[shard] for shard in partition.shards(TRAIN)]
    return np.array([np.bincount(labels, minlength=partition.num_classes) for labels in own])


def natural_clusters(partition: Partition, count: int) -> np.ndarray:
    """[K] the cluster of every client: its domain, else one by its shares of the labels."""
    if partition.client_domain is not None:
        return partition.client_domain
    return label_clusters(partition.label, partition.shards(TRAIN), count, partition.num_classes)


def difference_clusters(group: np.ndarray, count: int) -> np.ndarray:
    """[K] int64 clusters 0 … count−1 by the group [K] of clients that differ, −1 of the others.

    Those that agree are cluster 0, each group one of the others. Where there are more groups than
    clusters left, they are dealt to these in turn; where nobody agrees, all clusters are groups'.
    """
    agreeing = int((group < 0).any())
    if count == agreeing:
        return np.zeros(len(group), dtype=np.int64)
    return np.where(group < 0, 0, agreeing + group % (count - agreeing)).astype(np.int64)
