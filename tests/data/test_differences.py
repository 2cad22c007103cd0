"""Who differs, what labels become, and how images look: against counting and closed forms."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsdg.data.client_groups import client_groups
from fedsdg.data.label_conflict import label_cycle
from fedsdg.data.transforms import NOISE, View, inverted, noisy, rotated


def generator(*keys):
    return np.random.default_rng(keys)


# --- Who ---------------------------------------------------------------------------------------


@given(st.integers(1, 30), st.data())
def test_groups_are_even_and_hold_exactly_those_who_differ(clients, data):
    count = data.draw(st.integers(0, clients))
    groups = data.draw(st.none() | st.integers(1, max(1, count)))
    group = client_groups(clients, count, groups, generator(0))
    assert (group >= 0).sum() == count and (group >= -1).all()
    sizes = np.bincount(group[group >= 0])
    if count:
        assert len(sizes) == (count if groups is None else groups)
        assert sizes.max() - sizes.min() <= 1
    # Who it is depends neither on the groups nor, of those of a smaller share, on the share.
    alone = client_groups(clients, count, None, generator(0))
    assert np.array_equal(alone >= 0, group >= 0)
    fewer = client_groups(clients, count // 2, None, generator(0))
    assert not ((fewer >= 0) & (group < 0)).any()


def test_everybody_differs_equally_often():
    times = sum(client_groups(10, 4, None, generator(seed)) >= 0 for seed in range(1000))
    assert np.abs(times - 400).max() < 5 * np.sqrt(1000 * 0.4 * 0.6)


def test_more_groups_than_clients_that_differ_are_refused():
    with pytest.raises(ValueError, match="3 clients cannot be divided into 4 groups; ask"):
        client_groups(10, 3, 4, generator(0))
    assert (client_groups(10, 0, 4, generator(0)) == -1).all()


# --- Labels ------------------------------------------------------------------------------------


@given(st.integers(2, 30), st.data())
def test_a_cycle_is_one_cycle_over_so_many_labels_and_keeps_the_others(num_classes, data):
    classes = data.draw(st.integers(2, num_classes))
    becomes = label_cycle(num_classes, classes, generator(data.draw(st.integers(0, 999))))
    assert sorted(becomes.tolist()) == list(range(num_classes))
    moved = np.flatnonzero(becomes != np.arange(num_classes))
    assert len(moved) == classes
    label, way = int(moved[0]), []
    for _ in range(classes):
        way.append(label)
        label = int(becomes[label])
    assert label == way[0] and sorted(way) == moved.tolist()


def test_all_cycles_are_alike_probable():
    """4 labels, 3 of them in a cycle: 4 sets and 2 orders, 8 outcomes."""
    draws = 4000
    found = Counter(tuple(label_cycle(4, 3, generator(seed)).tolist()) for seed in range(draws))
    possible = {
        table
        for table in itertools.permutations(range(4))
        if sum(table[i] != i for i in range(4)) == 3
    }
    assert set(found) == possible and len(possible) == 8
    expected = draws / 8
    assert all(abs(n - expected) < 5 * np.sqrt(expected * 7 / 8) for n in found.values())


def test_a_cycle_over_no_label_keeps_all():
    assert label_cycle(4, 0, generator(0)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("classes", [1, 5])
def test_an_impossible_cycle_is_refused(classes):
    with pytest.raises(ValueError, match=f"over {classes} labels is impossible with 4 classes"):
        label_cycle(4, classes, generator(0))


# --- Images ------------------------------------------------------------------------------------


def pictures(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize("shape", [(3, 8, 8), (3, 8, 8, 3)])
def test_what_undoes_itself_gives_the_images_back(shape):
    images = pictures(*shape)
    assert np.array_equal(inverted(inverted(images)), images)
    assert (inverted(images).astype(int) + images == 255).all()
    assert np.array_equal(rotated(images, 0.0), images)
    assert np.array_equal(rotated(rotated(images, 90.0), -90.0), images)
    assert np.array_equal(rotated(images, 90.0), np.rot90(images, axes=(1, 2)))
    assert np.array_equal(noisy(images, np.zeros(shape)), images)


def test_colours_are_turned_each_by_itself():
    images = pictures(2, 8, 8, 3)
    turned = rotated(images, 33.0)
    for colour in range(3):
        assert np.array_equal(turned[..., colour], rotated(images[..., colour], 33.0))


def test_angles_are_uniform_on_both_sides():
    angles = np.array(
        [View("rotate", lambda *k, s=seed: generator(s, *k)).angle() for seed in range(4000)]
    )
    sizes = abs(angles)
    assert sizes.min() >= 15 and sizes.max() <= 60
    # Uniform over 45 degrees: mean 37.5, standard deviation 45/√12.
    assert abs(sizes.mean() - 37.5) < 5 * 45 / np.sqrt(12 * 4000)
    assert abs(sizes.std() - 45 / np.sqrt(12)) < 0.5
    assert abs((angles > 0).mean() - 0.5) < 5 * 0.5 / np.sqrt(4000)


def test_an_image_has_the_same_noise_whenever_it_is_seen():
    view = View("noise", lambda *keys: generator(5, *keys))
    images, numbers = np.full((40, 16, 16), 128, dtype=np.uint8), np.arange(100, 140)
    seen = view(images, numbers)
    assert np.array_equal(view(images[7:9], numbers[7:9]), seen[7:9])
    assert not np.array_equal(seen[0], seen[1])
    other = View("noise", lambda *keys: generator(6, *keys))
    assert not np.array_equal(other(images, numbers), seen)
    ink = seen / 255.0
    # Beyond two standard deviations it is cut off: what is within the central half is untouched.
    quartiles = np.quantile((ink - 128 / 255), [0.25, 0.75])
    assert quartiles == pytest.approx([-0.6745 * NOISE, 0.6745 * NOISE], abs=0.01)


def test_there_is_no_other_view():
    with pytest.raises(ValueError, match="there is no view 'blur'; use invert, rotate or noise"):
        View("blur", generator)(pictures(1, 8, 8), np.arange(1))
