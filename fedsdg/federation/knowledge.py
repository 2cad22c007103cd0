"""What a server is told of its clients beforehand, where a method assumes that it knows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from fedsdg.aggregation.types import Rule
from fedsdg.data.partition import TRAIN, Partition
from fedsdg.next_federation.label_clusters import label_clusters


def tell(
    rule: Rule, state: Mapping[str, Tensor], partition: Partition, group: np.ndarray | None
) -> dict[str, Tensor]:
    """A rule's state before the first round, with the clusters or the labels that it asks for.

    ``group`` [K]: of clients that differ, −1 of the others. Clusters are these groups where there
    are some (``difference_clusters``), else clusters of the shares of true training labels. Labels
    are told as how many of its training samples are of each class.
    """
    told = dict(state)
    if "clusters" in rule.server_prior:
        count = rule.clusters  # type: ignore[attr-defined]
        if group is None or (group < 0).all():
            known = natural_clusters(partition, count)
        else:
            known = difference_clusters(group, count)
        told = rule.with_clusters(told, known)  # type: ignore[attr-defined]
    if "labels" in rule.server_prior:
        told = rule.with_labels(told, label_counts(partition))  # type: ignore[attr-defined]
    return told


def label_counts(partition: Partition) -> np.ndarray:
    """[K, classes] how many training samples of each class every client has, by true labels."""
    own = [partition.label[shard] for shard in partition.shards(TRAIN)]
    return np.array(
        [np.bincount(labels, minlength=partition.facts["num_classes"]) for labels in own]
    )


def natural_clusters(partition: Partition, count: int) -> np.ndarray:
    """[K] the cluster of every client by its shares of the labels."""
    classes = partition.facts["num_classes"]
    return label_clusters(partition.label, partition.shards(TRAIN), count, classes)


def difference_clusters(group: np.ndarray, count: int) -> np.ndarray:
    """[K] int64 clusters 0 … count−1 by the group [K] of clients that differ, −1 of the others.

    Those that agree are cluster 0, each group one of the others. Where there are more groups than
    clusters left, they are dealt to these in turn; where nobody agrees, all clusters are groups'.
    """
    agreeing = int((group < 0).any())
    if count == agreeing:
        return np.zeros(len(group), dtype=np.int64)
    return np.where(group < 0, 0, agreeing + group % (count - agreeing)).astype(np.int64)
