"""Clients leave as often as asked, each by a luck of its own."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsdg.federation.environment.dropout import dropouts

EVERYONE = np.arange(400)


@pytest.mark.parametrize("lasting", [False, True])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), round_=st.integers(1, 30), data=st.data())
def test_a_clients_luck_does_not_depend_on_the_others(lasting, seed, round_, data):
    few = data.draw(st.lists(st.integers(0, 30), unique=True, min_size=1, max_size=8))
    together = dropouts(seed, round_, range(31), 0.3, lasting)
    alone = dropouts(seed, round_, few, 0.3, lasting)
    for name in ("gone", "leaves", "progress", "arrives"):
        assert np.array_equal(getattr(alone, name), getattr(together, name)[few])


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_in_passing_each_leaves_with_the_probability_after_a_uniform_share(probability):
    drawn = [dropouts(3, t, EVERYONE, probability, False) for t in range(1, 11)]
    leaves = np.array([one.leaves for one in drawn])
    error = np.sqrt(probability * (1 - probability) / leaves.size)
    assert abs(leaves.mean() - probability) < 5 * error
    assert not any(one.gone.any() for one in drawn)
    progress = np.concatenate([one.progress[one.leaves] for one in drawn])
    ranks = (np.arange(len(progress)) + 0.5) / len(progress)
    assert np.abs(np.sort(progress) - ranks).max() < 2.7 / np.sqrt(len(progress))
    for one in drawn:
        assert (one.progress[~one.leaves] == 1).all()
        assert np.array_equal(one.arrives, ~one.leaves)
    # A round's luck is not the next one's: correlation within 5 standard errors.
    again = np.corrcoef(leaves[:-1].ravel(), leaves[1:].ravel())[0, 1]
    assert abs(again) < 5 / np.sqrt(leaves[1:].size)


def test_for_good_is_geometric_and_nobody_comes_back():
    p, rounds = 0.2, 12
    drawn = [dropouts(3, t, EVERYONE, p, True) for t in range(1, rounds + 1)]
    leaves = np.array([one.leaves for one in drawn])
    gone = np.array([one.gone for one in drawn])
    assert (leaves.sum(axis=0) <= 1).all(), "one leaves once"
    assert np.array_equal(gone[1:], np.cumsum(leaves, axis=0)[:-1] > 0)
    assert not gone[0].any()
    for t in range(rounds):
        expected = (1 - p) ** (t + 1)
        arrives = drawn[t].arrives.mean()
        assert abs(arrives - expected) < 5 * np.sqrt(expected * (1 - expected) / len(EVERYONE))


@pytest.mark.parametrize("lasting", [False, True])
def test_ends_of_the_range(lasting):
    nobody = dropouts(0, 4, EVERYONE, 0.0, lasting)
    assert nobody.arrives.all() and (nobody.progress == 1).all()
    assert dropouts(0, 1, EVERYONE, 1.0, lasting).leaves.all()
    assert not dropouts(0, 2, EVERYONE, 1.0, lasting).arrives.any()


def test_seeds_and_rounds_differ():
    masks = {
        dropouts(seed, round_, EVERYONE, 0.3, False).leaves.tobytes()
        for seed in range(3)
        for round_ in range(1, 4)
    }
    assert len(masks) == 9


def test_a_higher_probability_keeps_those_who_leave_anyway():
    few = dropouts(0, 1, EVERYONE, 0.1, False)
    many = dropouts(0, 1, EVERYONE, 0.4, False)
    assert (few.leaves <= many.leaves).all()
    assert np.array_equal(few.progress[few.leaves], many.progress[few.leaves])


@pytest.mark.parametrize(("round_", "p"), [(0, 0.1), (1, -0.1), (1, 1.1), (1, float("nan"))])
def test_nonsense(round_, p):
    with pytest.raises(ValueError, match="rounds count from 1"):
        dropouts(0, round_, [1], p, False)
