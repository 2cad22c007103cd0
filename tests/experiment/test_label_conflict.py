"""What labels become under a label conflict: against counting."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsdg.experiment.label_conflict import label_cycle


def generator(*keys):
    return np.random.default_rng(keys)


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
