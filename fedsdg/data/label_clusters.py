"""Clusters of clients whose labels are alike: what a server would know that knew the data."""

from collections.abc import Sequence

import numpy as np

MOST_PASSES = 100


def label_clusters(
    labels: np.ndarray, shards: Sequence[np.ndarray], count: int, num_classes: int
) -> np.ndarray:
    """[K] int64, a cluster 0 … count-1 for every client, none of them empty.

    k-means (Lloyd) of the clients' shares of classes, p_kc = (labels c of client k) / n_k. It draws
    nothing: the first centre is the client nearest to the mean of all, each further one the client
    farthest from the centres so far; of equally near or far ones the first. A cluster that loses
    all its members gets the client that lies farthest from its own centre.
    labels: [n] int64 of all samples; shards: each client's sample indices. Raises ValueError for
    fewer clients than clusters, or a client without samples.
    """
    if not 1 <= count <= len(shards):
        raise ValueError(
            f"{len(shards)} clients cannot make {count} clusters without an empty one; ask for 1 "
            f"to {len(shards)}"
        )
    if empty := [k for k, shard in enumerate(shards) if not len(shard)]:
        raise ValueError(f"client {empty[0]} has no samples whose labels could tell its cluster")
    counts = [np.bincount(labels[shard], minlength=num_classes) for shard in shards]
    shares = np.array([row / row.sum() for row in counts])
    chosen = [int(np.argmin(_squares(shares, shares.mean(0, keepdims=True))[:, 0]))]
    while len(chosen) < count:
        distances = _squares(shares, shares[chosen]).min(axis=1)
        distances[chosen] = -1.0  # Clients may have equal labels; none is a centre twice.
        chosen.append(int(np.argmax(distances)))
    centres, members = shares[chosen], np.full(len(shards), -1)
    for _ in range(MOST_PASSES):
        distances = _squares(shares, centres)
        renewed = distances.argmin(axis=1)
        for cluster in range(count):
            if not (renewed == cluster).any():
                own = distances[np.arange(len(shares)), renewed]
                # Only from those who leave no one behind.
                own[np.bincount(renewed, minlength=count)[renewed] == 1] = -1.0
                renewed[int(np.argmax(own))] = cluster
        if np.array_equal(renewed, members):
            break
        members = renewed
        centres = np.array([shares[members == cluster].mean(0) for cluster in range(count)])
    return members.astype(np.int64)


def _squares(rows: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """[K, count] squared distances."""
    squares: np.ndarray = ((rows[:, None] - centres[None]) ** 2).sum(axis=2)
    return squares
