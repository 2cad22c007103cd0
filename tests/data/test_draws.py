"""Skews, allocations and stratified draws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsdg.data.allocation import classes_each, dirichlet, iid, quantity
from fedsdg.data.datasets import stratified_choice
from fedsdg.data.skew import Skew, parse_skew


def draw(seed=0):
    return np.random.default_rng(seed)


def test_a_skew_is_read():
    assert parse_skew("iid") == Skew("iid", "iid")
    assert parse_skew("quantity~0.00001") == Skew("quantity", "quantity~0.00001", 1e-5)
    assert parse_skew("classes~12") == Skew("classes", "classes~12", 12)
    assert parse_skew("column~id.x-1") == Skew("column", "column~id.x-1", column="id.x-1")


REFUSED = "dirichlet~0.10 dirichlet~1 dirichlet~1e-5 dirichlet~.1 dirichlet~0 dirichlet~-1.0 iid~1"
REFUSED += (
    " dirichlet~inf dirichlet~nan dirichlet classes~2.0 classes~0 classes~02 quantity~x column~"
)
REFUSED += " column~a/b mixed~0.5~0.1 domains"


@pytest.mark.parametrize("text", [*REFUSED.split(), "", 0.1, None])
def test_any_other_text_is_refused(text):
    with pytest.raises(ValueError, match="is none of 'dirichlet~ALPHA'") as error:
        parse_skew(text)
    assert f"did you mean {text!r}" not in str(error.value)


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
    parts = np.bincount(client[labels == 0])
    assert parts.max() - parts[parts > 0].min() <= 1


def test_shares_have_the_moments_of_their_distribution():
    # A share of Dir(α 1_K) has the mean 1 / K and the variance (K − 1) / (K² (Kα + 1)).
    labels = np.zeros(1000, dtype=int)
    for allocate, alpha in ((dirichlet, 0.5), (quantity, 2.0)):
        clients = [allocate(labels, 5, alpha, draw(seed)) for seed in range(600)]
        shares = np.array([np.bincount(client, minlength=5) / 1000 for client in clients])
        assert np.abs(shares.mean(axis=0) - 0.2).max() < 0.03
        assert np.isclose(np.var(shares), 4 / 25 / (5 * alpha + 1), rtol=0.1)


def test_clients_are_alike_on_average_under_an_even_dirichlet():
    # Cuts are rounded alike in all classes, but clients take the parts in a random order.
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
    # 7 of 3, 5 and 2 samples: 2.1, 3.5 and 1.4, so the second class gives one more. A tie goes to
    # the smaller class.
    for counts, total, taken in (([3, 5, 2], 7, [2, 4, 1]), ([2, 2], 1, [1, 0])):
        labels = np.repeat(np.arange(len(counts)), counts)
        chosen = stratified_choice(labels, total, draw())
        assert np.bincount(labels[chosen], minlength=len(counts)).tolist() == taken
