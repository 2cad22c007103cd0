"""Skews, allocations, stratified draws, groups and clusters of clients."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsdg.next_data.allocation import classes_each, dirichlet, iid, quantity
from fedsdg.next_data.client_groups import client_groups, clients_in
from fedsdg.next_data.datasets import stratified_choice
from fedsdg.next_data.label_clusters import label_clusters
from fedsdg.next_data.skew import parse_skew


def draw(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("text", "kind", "number"),
    [
        ("iid", "iid", 0),
        ("dirichlet~0.1", "dirichlet", 0.1),
        ("dirichlet~0.00001", "dirichlet", 1e-5),
        ("quantity~2.0", "quantity", 2.0),
        ("classes~12", "classes", 12),
        ("column~writer_id.x-1", "column", 0),
    ],
)
def test_a_skew_is_read(text, kind, number):
    skew = parse_skew(text)
    assert (skew.kind, skew.text, skew.number) == (kind, text, number)
    assert skew.column == text.removeprefix("column~") or kind != "column"


@pytest.mark.parametrize(
    "text",
    [
        "dirichlet~0.10", "dirichlet~1", "dirichlet~1e-5", "dirichlet~.1", "dirichlet~0", "iid~1",
        "dirichlet~-1.0", "dirichlet~inf", "dirichlet~nan", "dirichlet", "classes~2.0", "classes~0",
        "classes~02", "quantity~x", "column~", "column~a/b", "mixed~0.5~0.1", "domains", "", 0.1,
        None,
    ],
)  # fmt: skip
def test_any_other_text_is_refused(text):
    with pytest.raises(ValueError, match="is none of 'dirichlet~ALPHA'"):
        parse_skew(text)


@given(st.floats(1e-9, 1e9))
def test_every_number_has_one_spelling(alpha):
    text = f"dirichlet~{np.format_float_positional(alpha, trim='0')}"
    assert parse_skew(text).number == alpha


LABELS = st.lists(st.integers(0, 5), min_size=1, max_size=200).map(np.array)


@given(LABELS, st.integers(1, 12), st.sampled_from([0.01, 0.5, 100.0]), st.integers(0, 5))
def test_every_sample_goes_to_one_client(labels, clients, number, seed):
    for allocate in (iid, dirichlet, quantity):
        client = allocate(labels, clients, number, draw(seed))
        assert client.shape == labels.shape and client.dtype == np.int32
        assert client.min() >= 0 and client.max() < clients
    sizes = np.bincount(iid(labels, clients, 0, draw(seed)), minlength=clients)
    assert sizes.max() - sizes.min() <= 1


@given(st.integers(2, 8), st.integers(1, 12), st.integers(1, 8), st.integers(0, 5))
def test_every_client_holds_as_many_classes_as_asked_for(classes, clients, count, seed):
    labels = np.repeat(np.arange(classes), 20)
    if count > classes or clients * count < classes:
        with pytest.raises(ValueError, match="cannot share"):
            classes_each(labels, clients, count, draw(seed))
        return
    client = classes_each(labels, clients, count, draw(seed))
    held = [np.unique(labels[client == k]) for k in range(clients)]
    assert [len(one) for one in held] == [count] * clients
    holders = np.bincount(np.concatenate(held), minlength=classes)
    assert holders.max() - holders.min() <= 1
    for label in range(classes):
        parts = np.bincount(client[labels == label])
        assert parts[parts > 0].max() - parts[parts > 0].min() <= 1


def test_a_large_concentration_is_even_and_a_small_one_is_not():
    labels = np.repeat(np.arange(4), 1000)
    for allocate, even in ((dirichlet, 250), (quantity, 1000)):
        for alpha, low, high in ((1e6, 0.95, 1.05), (0.01, 0.0, 4.0)):
            client = allocate(labels, 4, alpha, draw())
            counts = np.bincount(client[labels == 0] if even == 250 else client, minlength=4) / even
            assert low <= counts.min() <= counts.max() <= high
            assert alpha > 1 or counts.max() > 3


def test_dirichlet_shares_have_the_variance_of_their_distribution():
    # A share of Dir(α 1_K) has the variance (K − 1) / (K² (Kα + 1)).
    labels = np.zeros(1000, dtype=int)
    shares = [
        np.bincount(dirichlet(labels, 5, 0.5, draw(s)), minlength=5) / 1000 for s in range(600)
    ]
    assert np.isclose(np.var(shares), 4 / 25 / 3.5, rtol=0.1)
    sizes = [np.bincount(quantity(labels, 5, 2.0, draw(s)), minlength=5) / 1000 for s in range(600)]
    assert np.isclose(np.var(sizes), 4 / 25 / 11, rtol=0.1)


def test_clients_are_alike_on_average_under_a_dirichlet():
    labels = np.repeat(np.arange(10), 7)
    total = sum(np.bincount(dirichlet(labels, 10, 1e6, draw(s)), minlength=10) for s in range(200))
    assert np.abs(total / 200 - 7).max() < 0.5


@given(LABELS, st.integers(0, 200), st.integers(0, 2))
def test_a_stratified_choice_takes_a_share_of_every_class(labels, total, keep):
    total = min(total, len(labels))
    chosen = stratified_choice(labels, total, draw(), keep)
    counts, taken = np.bincount(labels, minlength=6), np.bincount(labels[chosen], minlength=6)
    exact = total * counts / len(labels)
    assert (np.diff(chosen) > 0).all()
    assert (taken <= np.maximum(counts - keep, 0)).all()
    room = counts - keep >= np.ceil(exact)
    assert (np.abs(taken - exact)[room] < 1).all()
    if room.all():
        assert len(chosen) == total


def test_largest_remainders_by_hand():
    # 7 of 3, 5 and 2 samples: 2.1, 3.5 and 1.4, so the second class gives one more.
    labels = np.repeat([0, 1, 2], [3, 5, 2])
    assert np.bincount(labels[stratified_choice(labels, 7, draw())]).tolist() == [2, 4, 1]
    # A tie goes to the smaller class.
    even = np.repeat([0, 1], [2, 2])
    assert np.bincount(even[stratified_choice(even, 1, draw())], minlength=2).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("share", "clients", "count"), [(0.5, 5, 3), (0.25, 10, 3), (0, 9, 0), (1, 9, 9)]
)
def test_a_share_of_the_clients_is_a_whole_number(share, clients, count):
    assert clients_in(share, clients) == count


@given(st.integers(1, 30), st.integers(1, 5), st.integers(0, 9))
def test_groups_are_even_and_nested(clients, groups, seed):
    earlier = set()
    for count in range(clients + 1):
        alone = client_groups(clients, count, None, draw(seed))
        assert alone[alone >= 0].tolist() == list(range(count))
        different = set(np.flatnonzero(alone >= 0).tolist())
        assert earlier <= different
        earlier = different
        if 0 < count < groups:
            with pytest.raises(ValueError, match="fewer groups"):
                client_groups(clients, count, groups, draw(seed))
            continue
        group = client_groups(clients, count, groups, draw(seed))
        sizes = np.bincount(group[group >= 0], minlength=groups)
        assert set(np.flatnonzero(group >= 0).tolist()) == different
        assert count == 0 or sizes.max() - sizes.min() <= 1


def test_clusters_are_the_groups_of_equal_labels():
    labels = np.repeat([0, 1, 2, 3], 50)
    shards = [np.flatnonzero(labels // 2 == k % 2)[k::6] for k in range(6)]
    assert label_clusters(labels, shards, 2, 4).tolist() in ([0, 1] * 3, [1, 0] * 3)
    assert sorted(label_clusters(labels, shards, 6, 4).tolist()) == list(range(6))
    assert label_clusters(labels, shards, 1, 4).tolist() == [0] * 6


@given(st.integers(0, 50), st.integers(1, 8), st.data())
def test_no_cluster_is_empty_and_none_of_its_members_is_nearer_to_another(seed, clients, data):
    count = data.draw(st.integers(1, clients))
    labels = draw(seed).integers(0, 4, 100)
    shards = [draw(seed + k).choice(100, 5, replace=False) for k in range(clients)]
    members = label_clusters(labels, shards, count, 4)
    assert set(members) == set(range(count))
    shares = np.array([np.bincount(labels[one], minlength=4) / 5 for one in shards])
    centres = np.array([shares[members == c].mean(axis=0) for c in range(count)])
    squares = ((shares[:, None] - centres) ** 2).sum(axis=2)
    several = np.bincount(members)[members] > 1
    assert (squares[np.arange(clients), members] <= squares.min(axis=1) + 1e-9)[several].all()


def test_clusters_that_cannot_be_are_refused():
    for shards, count in (([np.arange(3)], 2), ([np.arange(3), np.array([], int)], 1)):
        with pytest.raises(ValueError, match="cannot form"):
            label_clusters(np.zeros(3, int), shards, count, 2)
