"""Clusters of clients with similar labels, for a server that knows the clients' class shares."""

from collections.abc import Sequence

import numpy as np

_MOST_PASSES = 100


def label_clusters(
    labels: np.ndarray, shards: Sequence[np.ndarray], count: int, num_classes: int
) -> np.ndarray:
    """Cluster clients by k-means (Lloyd) of their class shares p_kc = n_kc / n_k.

    Nothing is random: the first centre is the client nearest to the mean, each further one the
    client farthest from the centres so far (ties to the first). A cluster that loses all members
    gets the client farthest from its own centre.

    Args:
        labels: int64 [n], all samples.
        shards: Sample indices of each of K clients.
        count: Number of clusters.
        num_classes: Number of classes C.

    Returns:
        int64 [K], the cluster 0 … count − 1 of every client; none is empty.

    Raises:
        ValueError: There are fewer clients than clusters, or a client has no samples.
    """
    counts = np.array([np.bincount(labels[shard], minlength=num_classes) for shard in shards])
    if not 1 <= count <= len(shards) or not counts.any(axis=1).all():
        raise ValueError(
            f"{len(shards)} clients, the smallest of {min(map(len, shards))} samples, cannot form "
            f"{count} clusters; ask for fewer, and give each client a sample"
        )
    shares = counts / counts.sum(axis=1, keepdims=True)
    chosen = [int(_distances(shares, shares.mean(axis=0, keepdims=True)).argmin())]
    while len(chosen) < count:
        nearest = _distances(shares, shares[chosen]).min(axis=1)
        nearest[chosen] = -1.0  # Clients may have equal shares; none is a centre twice.
        chosen.append(int(nearest.argmax()))
    centres = shares[chosen]
    members = np.full(len(shards), -1)
    for _ in range(_MOST_PASSES):
        distances = _distances(shares, centres)
        renewed = distances.argmin(axis=1)
        for cluster in range(count):
            if not (renewed == cluster).any():
                own = distances[np.arange(len(shards)), renewed]
                # The only member of a cluster stays there.
                own[np.bincount(renewed, minlength=count)[renewed] == 1] = -1.0
                renewed[int(own.argmax())] = cluster
        if np.array_equal(renewed, members):
            break
        members = renewed
        centres = np.array([shares[members == cluster].mean(axis=0) for cluster in range(count)])
    return members.astype(np.int64)


def _distances(rows: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return the squared distances [rows, centres]."""
    squares: np.ndarray = ((rows[:, None] - centres[None]) ** 2).sum(axis=2)
    return squares
