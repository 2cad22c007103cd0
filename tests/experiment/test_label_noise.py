"""Labels are wrong at the rates asked for, symmetrically, and never where accuracy is measured."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsdg.experiment.label_noise import noisy_labels


def shards(n=4000, clients=4):
    """Samples 0 … n − 1, dealt in turn: train, validation, and a test that nobody names."""
    held = np.arange(n)
    client, split = held % clients, (held // clients) % 5
    train = [held[(client == k) & (split < 3)] for k in range(clients)]
    val = [held[(client == k) & (split == 3)] for k in range(clients)]
    return train, val, held[split == 4]


def noisy(low, high, classes=10, n=4000, seed=0, clients=4):
    train, val, test = shards(n, clients)
    labels = np.random.default_rng(99).integers(classes, size=n)
    generator = np.random.default_rng(seed)
    changed, rates = noisy_labels(labels, train, val, low, high, classes, generator)
    return labels, changed, rates, train, val, test


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    ends=st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted),
    classes=st.integers(2, 12),
)
def test_rates_lie_in_the_range_and_tests_keep_their_labels(seed, ends, classes):
    labels, changed, rates, train, _, test = noisy(*ends, classes, 500, seed)
    assert rates.shape == (4,) and (rates >= ends[0]).all() and (rates <= ends[1]).all()
    assert np.array_equal(changed[test], labels[test])
    assert changed.dtype == labels.dtype and changed.min() >= 0 and changed.max() < classes
    if ends[0] == 1:
        held = np.concatenate(train)
        assert (changed[held] != labels[held]).all(), "a wrong label is never the right one"


@pytest.mark.parametrize("split", [3, 4])
def test_each_client_has_its_own_rate_on_train_and_validation(split):
    """Bernoulli(rate) per sample: 5 standard errors of √(r(1 − r)/n)."""
    labels, changed, rates, *parts = noisy(0.1, 0.6, n=40_000)
    assert len(set(rates)) == 4
    for k, rate in enumerate(rates):
        held = parts[split - 3][k]
        found = (changed[held] != labels[held]).mean()
        assert abs(found - rate) < 5 * np.sqrt(rate * (1 - rate) / len(held))


def test_rates_are_uniform_in_the_range():
    rates = noisy(0.2, 0.8, n=5 * 2000, clients=2000)[2]
    quantiles = (np.sort(rates) - 0.2) / 0.6
    # Kolmogorov's bound at the level of one in a million, 2.7 / √n.
    assert np.abs(quantiles - (np.arange(2000) + 0.5) / 2000).max() < 2.7 / np.sqrt(2000)


def test_all_other_classes_are_alike():
    labels, changed, *_ = noisy(0.5, 0.5, classes=5, n=100_000)
    wrong = changed != labels
    counts = np.zeros((5, 5))
    np.add.at(counts, (labels[wrong], changed[wrong]), 1)
    assert (np.diag(counts) == 0).all()
    off = counts[~np.eye(5, dtype=bool)].reshape(5, 4)
    mean = off.mean(axis=1, keepdims=True)
    assert (np.abs(off - mean) < 5 * np.sqrt(mean)).all()


def test_more_noise_hits_what_less_noise_hits():
    labels, less, *_ = noisy(0.2, 0.2)
    _, more, *_ = noisy(0.4, 0.4)
    hit = less != labels
    assert np.array_equal(more[hit], less[hit]) and (more != labels).sum() > 1.5 * hit.sum()


def test_it_is_reproducible_and_touches_no_argument():
    labels, once, rates, *_ = noisy(0.0, 0.5)
    _, again, same, *_ = noisy(0.0, 0.5)
    assert np.array_equal(once, again) and np.array_equal(rates, same)
    assert np.array_equal(labels, np.random.default_rng(99).integers(10, size=4000))
    _, other, *_ = noisy(0.0, 0.5, seed=1)
    assert not np.array_equal(once, other)


def test_no_noise():
    labels, changed, rates, *_ = noisy(0.0, 0.0)
    assert np.array_equal(labels, changed) and not rates.any()


@pytest.mark.parametrize(
    ("low", "high", "classes", "message"),
    [
        (-0.1, 0.5, 10, "must rise within 0 … 1"),
        (0.5, 0.1, 10, "must rise within 0 … 1"),
        (0.5, 1.1, 10, "must rise within 0 … 1"),
        (float("nan"), 0.5, 10, "must rise within 0 … 1"),
        (0.1, 0.5, 1, "at least 2 classes"),
    ],
)
def test_impossible_noise(low, high, classes, message):
    with pytest.raises(ValueError, match=message):
        noisy(low, high, classes)
