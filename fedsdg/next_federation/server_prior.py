"""What a server knows of its clients before the first round, if its rule assumes it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from fedsdg.next_federation.conditions.condition import ClientData
from fedsdg.next_federation.label_clusters import label_clusters


def prior_state(rule: Any, state: Mapping[str, Tensor], data: ClientData) -> dict[str, Tensor]:
    """Return the state of a rule before the first round, with what the rule is to know.

    A rule that asks for `clusters` gets the groups of clients that differ, if there are some, and
    otherwise clusters of the clients' class shares; one that asks for `labels` gets the number of
    training samples of each class.

    Args:
        rule: The aggregation rule, with `server_prior`, and `with_clusters` or `with_labels`.
        state: Its state.
        data: The clients' data.
    """
    known = dict(state)
    group = data.facts.get("group", np.full(data.num_clients, -1))
    if "clusters" in rule.server_prior:
        clusters = clusters_of_groups(group, rule.clusters)
        if (group < 0).all():
            clusters = label_clusters(data.true_labels, data.train, rule.clusters, data.num_classes)
        known = rule.with_clusters(known, clusters)
    if "labels" in rule.server_prior:
        owned = [data.true_labels[shard] for shard in data.train]
        counts = [np.bincount(labels, minlength=data.num_classes) for labels in owned]
        known = rule.with_labels(known, np.array(counts))
    return known


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
