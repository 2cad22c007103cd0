"""Clusters of clients by their labels: groups that are there are found, none is ever empty."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsdg.data.label_clusters import label_clusters


def clients_with(shares, size, generator):
    """(labels, shards) of clients that draw `size` labels each with the given shares [K, C]."""
    labels = [generator.choice(len(p), size=size, p=p) for p in shares]
    return np.concatenate(labels), np.arange(len(shares) * size).reshape(len(shares), size)


@pytest.mark.parametrize("seed", range(10))
def test_groups_of_clients_with_classes_of_their_own_are_found(seed):
    generator = np.random.default_rng(seed)
    groups = generator.permutation(np.arange(12) % 3)
    shares = np.kron(np.eye(3), np.full((1, 3), 1 / 3))[groups]
    found = label_clusters(*clients_with(shares, 30, generator), 3, 9)
    pairs = groups[:, None] == groups[None]
    assert np.array_equal(found[:, None] == found[None], pairs)


def squares(shares, members):
    centres = {c: shares[members == c].mean(0) for c in set(members.tolist())}
    return sum(((row - centres[c]) ** 2).sum() for row, c in zip(shares, members, strict=True))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_no_cluster_is_empty_and_no_client_gains_by_moving(seed):
    """Lloyd's fixed point: every client is at least as near to its own centre as to another."""
    generator = np.random.default_rng(seed)
    size, count = int(generator.integers(1, 12)), int(generator.integers(1, 6))
    count = min(size, count)
    shares = generator.dirichlet(np.full(4, 0.3), size=size)
    labels, shards = clients_with(shares, 8, generator)
    found = label_clusters(labels, shards, count, 4)
    assert found.shape == (size,)
    assert set(found.tolist()) == set(range(count))
    own = np.array([np.bincount(labels[shard], minlength=4) / 8 for shard in shards])
    centres = np.array([own[found == c].mean(0) for c in range(count)])
    distances = ((own[:, None] - centres[None]) ** 2).sum(2)
    sizes = np.bincount(found)
    for k in range(size):
        if sizes[found[k]] > 1:  # One alone may have been moved to fill a cluster.
            assert distances[k, found[k]] <= distances[k].min() + 1e-12
    assert squares(own, found) <= squares(own, np.zeros(size, dtype=int)) + 1e-12
    assert np.array_equal(label_clusters(labels, shards, count, 4), found)


def test_equal_clients_are_spread_so_that_none_is_empty():
    labels = np.zeros(12, dtype=int)
    shards = np.arange(12).reshape(4, 3)
    assert sorted(label_clusters(labels, shards, 4, 2).tolist()) == [0, 1, 2, 3]
    assert set(label_clusters(labels, shards, 3, 2).tolist()) == {0, 1, 2}


def test_the_number_of_samples_does_not_count():
    labels = np.array([0] * 50 + [1] * 50 + [0, 1])
    shards = [np.arange(50), np.arange(50, 100), np.array([100]), np.array([101])]
    found = label_clusters(labels, shards, 2, 2)
    assert found[0] == found[2] != found[1] == found[3]


def test_impossible_clusters_are_refused():
    labels, shards = np.zeros(4, dtype=int), [np.arange(2), np.arange(2, 4)]
    for count in (0, 3):
        with pytest.raises(ValueError, match=f"2 clients cannot make {count} clusters"):
            label_clusters(labels, shards, count, 1)
    with pytest.raises(ValueError, match="client 1 has no samples"):
        label_clusters(labels, [np.arange(2), np.arange(0)], 1, 1)
