"""Clients that differ: groups, clusters of similar labels, and views of images."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsdg.federation.conditions import difference
from fedsdg.federation.conditions.condition import clients_in
from fedsdg.federation.conditions.difference import View, client_groups
from fedsdg.federation.preparation import label_clusters
from tests.data.pictures import noise


def draw(*keys):
    return np.random.default_rng(list(keys))


@pytest.mark.parametrize(
    ("share", "clients", "count"),
    [(0.5, 5, 3), (0.25, 10, 3), (0, 9, 0), (1, 9, 9), (0.35, 90, 32)],
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
        group = client_groups(clients, count, groups, draw(seed))
        sizes = np.bincount(group[group >= 0], minlength=groups)
        assert set(np.flatnonzero(group >= 0).tolist()) == different
        assert count == 0 or sizes.max() - sizes.min() <= 1


def test_clusters_are_the_groups_of_equal_labels():
    counts = np.array([[9, 8, 0, 0], [0, 0, 9, 8]] * 3)
    assert label_clusters(counts, 2).tolist() in ([0, 1] * 3, [1, 0] * 3)
    assert sorted(label_clusters(counts, 6).tolist()) == list(range(6))
    assert label_clusters(counts, 1).tolist() == [0] * 6


@given(st.integers(0, 50), st.integers(1, 8), st.data())
def test_no_cluster_is_empty_and_none_of_its_members_is_nearer_to_another(seed, clients, data):
    count = data.draw(st.integers(1, clients))
    counts = draw(seed).multinomial(5, [0.25] * 4, size=clients)
    members = label_clusters(counts, count)
    assert set(members) == set(range(count))
    shares = counts / 5
    centres = np.array([shares[members == c].mean(axis=0) for c in range(count)])
    squares = ((shares[:, None] - centres) ** 2).sum(axis=2)
    several = np.bincount(members)[members] > 1
    assert (squares[np.arange(clients), members] <= squares.min(axis=1) + 1e-9)[several].all()


def test_clusters_that_cannot_be_are_refused():
    for counts, count in (([[3, 0]], 2), ([[3, 0], [0, 0]], 1)):
        with pytest.raises(ValueError, match="cannot form"):
            label_clusters(np.array(counts), count)


SOURCE = ("feature-shift", 0, 1)


def seen(images, kind, degrees=None):
    return View(kind, SOURCE, degrees)(images, np.arange(len(images)))


class Constant:
    """A generator whose normal numbers are all the same."""

    def __init__(self, value):
        self.value = value

    def standard_normal(self, shape):
        return np.full(shape, self.value)


def test_views_by_hand(monkeypatch):
    images = np.zeros((2, 5, 5), np.uint8)
    images[:, 0, 2] = 200
    assert np.array_equal(seen(images, "invert"), 255 - images)
    # Counter-clockwise: what was on top is on the left.
    turned = seen(images, "rotate", 90.0)
    assert (turned[:, 2, 0] == 200).all() and turned.sum() == 400
    for value, expected in ((0.0, 0), (1.0, 64), (10.0, 255), (-1.0, 0)):
        monkeypatch.setattr(difference, "stream", lambda *_, value=value: Constant(value))
        assert seen(images, "noise")[0, 1, 1] == expected
    colour = noise(0, (3, 6, 6, 3))
    for c in range(3):
        alone = seen(np.ascontiguousarray(colour[..., c]), "rotate", 30.0)
        assert np.array_equal(seen(colour, "rotate", 30.0)[..., c], alone)


def test_a_view_is_the_same_whenever_an_image_is_seen():
    images, numbers = noise(0, (6, 8, 8)), np.arange(10, 16)
    for kind in ("invert", "rotate", "noise"):
        view = View(kind, SOURCE)
        found = view(images, numbers)
        assert found.dtype == np.uint8 and not np.array_equal(found, images)
        assert np.array_equal(view(images[4:], numbers[4:]), found[4:])


def test_angles_are_drawn_on_both_sides():
    angles = [View("rotate", ("feature-shift", seed)).angle() for seed in range(200)]
    assert min(map(abs, angles)) >= 15 and max(map(abs, angles)) <= 60
    assert 60 < sum(angle > 0 for angle in angles) < 140
