"""What a server knows of its clients before the first round, if its rule assumes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from fedsdg.next_federation.conditions.condition import ClientData
from fedsdg.next_federation.label_clusters import label_clusters


def prior_state(
    rule: Any, state: Mapping[str, Tensor], true_labels: np.ndarray, data: ClientData
) -> dict[str, Tensor]:
    """Return the state of a rule before the first round, with what the rule is to know.

    A rule that asks for `clusters` gets the groups of clients that differ, if there are some, and
    otherwise clusters of the clients' class shares; one that asks for `labels` gets the number of
    training samples of each class.

    Args:
        rule: The aggregation rule, with `server_prior`, and `with_clusters` or `with_labels`.
        state: Its state.
        true_labels: int64 [n].
        data: The clients' data.
    """
    known = dict(state)
    if "clusters" in rule.server_prior:
        known = rule.with_clusters(known, _clusters(rule.clusters, true_labels, data))
    if "labels" in rule.server_prior:
        counts = [
            np.bincount(true_labels[shard], minlength=data.num_classes) for shard in data.train
        ]
        known = rule.with_labels(known, np.array(counts))
    return known


def _clusters(count: int, true_labels: np.ndarray, data: ClientData) -> np.ndarray:
    group = data.facts.get("group")
    if group is None or (group < 0).all():
        return label_clusters(true_labels, data.train, count, data.num_classes)
    return clusters_of_groups(group, count)


def clusters_of_groups(group: np.ndarray, count: int) -> np.ndarray:
    """Return the cluster of each client by its group.

    Clients that agree are cluster 0; each group is one of the others. More groups than clusters are
    assigned to these in turn. If no client agrees, all clusters are groups.

    Args:
        group: int64 [K]; -1: the client agrees.
        count: Number of clusters.

    Returns:
        int64 [K], 0 ... count - 1.
    """
    agreeing = int((group < 0).any())
    if count == agreeing:
        return np.zeros(len(group), dtype=np.int64)
    of_group = agreeing + group % (count - agreeing)
    return np.where(group < 0, 0, of_group).astype(np.int64)
