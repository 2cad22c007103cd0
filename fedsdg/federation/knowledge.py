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


def known_clusters(count: int, assignment: str) -> Knowledge:
    """The cluster of every client where ``assignment`` is "known"; else nothing.

    The groups of clients that differ where there are some (``difference_clusters``), else its
    domain where every client has one, else clusters of the shares of true training labels.
    """

    def tell(
        rule: Rule,
        state: Mapping[str, Tensor],
        partition: Partition,
        group: np.ndarray | None = None,
    ) -> dict[str, Tensor]:
        if assignment != "known":
            return dict(state)
        if group is None or (group < 0).all():
            known = clusters(partition, count)
        else:
            known = difference_clusters(group, count)
        told: dict[str, Tensor] = rule.with_clusters(state, known)  # type: ignore[attr-defined]
        return told

    return tell


def clusters(partition: Partition, count: int) -> np.ndarray:
    """[K] the cluster of every client."""
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
