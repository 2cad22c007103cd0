"""Properties of all rules: permutation, translation, scale, duplicates, and weights."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedsdg.aggregation import aggregate
from fedsdg.aggregation.rules.trimmed_mean import TrimmedMean
from fedsdg.aggregation.weights import capped

from . import oracle

RULES = tuple(oracle.RULES)
SIZE = 6
SAMPLES = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0]

numbers = st.floats(-4, 4, width=32).map(lambda x: round(x, 2))
cohorts = arrays.arrays(np.float64, (SIZE, 5), elements=numbers)
quick = settings(max_examples=25, deadline=None)


def step(rule, updates, samples=SAMPLES):
    """The step of a rule for updates, and the result."""
    made = aggregate(
        rule, np.zeros(updates.shape[1]), list(updates), num_samples=samples, client_samples=samples
    )
    return made.parameters, made


def distinct(updates):
    """Updates in general position: ties are for other tests."""
    noise = np.random.default_rng(0).normal(size=updates.shape)
    return updates + 0.37 * noise


@pytest.mark.parametrize("rule", RULES)
@quick
@given(updates=cohorts, order=st.permutations(range(SIZE)))
def test_the_order_of_clients_does_not_count(rule, updates, order):
    updates = distinct(updates)
    one, made = step(rule, updates)
    order = np.array(order)
    other, permuted = step(rule, updates[order], np.array(SAMPLES)[order].tolist())
    assert other == pytest.approx(one, abs=1e-6)
    if made.weights is not None:
        assert permuted.weights == pytest.approx(np.array(made.weights)[order], abs=1e-5)


@pytest.mark.parametrize("rule", ["fedavg", "krum", "coordinate-median", "geometric-median"])
@quick
@given(updates=cohorts, shift=arrays.arrays(np.float64, 5, elements=numbers))
def test_translated_updates_give_a_translated_step(rule, updates, shift):
    updates = distinct(updates)
    one, _ = step(rule, updates)
    other, _ = step(rule, updates + shift)
    assert other - shift == pytest.approx(one, abs=1e-5)


@pytest.mark.parametrize("rule", RULES)
@quick
@given(updates=cohorts, scale=st.sampled_from([1e-3, 0.5, 3.0, 1e4]))
def test_scaled_updates_give_a_scaled_step(rule, updates, scale):
    updates = distinct(updates)
    one, _ = step(rule, updates)
    other, _ = step(rule, scale * updates)
    # The epsilon of FedSDG's cosine is absolute, so that it is relative to scale²: 1e-8 / 1e-6.
    assert other / scale == pytest.approx(one, abs=0.05 if scale < 0.1 else 1e-5)


@pytest.mark.parametrize("rule", ["fedavg-uniform", "coordinate-median", "geometric-median"])
@quick
@given(updates=cohorts)
def test_a_cohort_that_is_there_twice_gives_the_same_step(rule, updates):
    updates = distinct(updates)[:5]  # An odd number: the median of an even one is not unique.
    one, _ = step(rule, updates, SAMPLES[:5])
    twice, _ = step(rule, np.concatenate([updates, updates]), 2 * SAMPLES[:5])
    assert twice == pytest.approx(one, abs=1e-5)


@quick
@given(updates=cohorts, samples=st.lists(st.integers(0, 50), min_size=SIZE, max_size=SIZE))
def test_a_client_with_n_samples_counts_as_n_clients_with_one(updates, samples):
    if not sum(samples):
        samples[0] = 1
    one, _ = step("fedavg", updates, samples)
    spread = np.repeat(updates, samples, axis=0)
    other, _ = step("fedavg-uniform", spread, [1] * len(spread))
    assert other == pytest.approx(one, abs=1e-9)


@pytest.mark.parametrize("rule", RULES)
@quick
@given(updates=cohorts)
def test_weights_are_shares_and_the_step_is_within_the_updates(rule, updates):
    result, made = step(rule, updates)
    if made.weights is not None:
        assert min(made.weights) >= 0 and sum(made.weights) == pytest.approx(1.0)
    if rule != "cgsv":  # Whose step combines unit vectors.
        assert (result >= updates.min(axis=0) - 1e-9).all()
        assert (result <= updates.max(axis=0) + 1e-9).all()


@quick
@given(updates=cohorts)
def test_the_geometric_median_is_no_worse_than_any_point_tried(updates):
    result, made = step("geometric-median", updates)
    found = oracle.objective(updates, result)
    assert made.diagnostics["objective"] == pytest.approx(found, rel=1e-6, abs=1e-9)
    for point in (*updates, updates.mean(axis=0), np.median(updates, axis=0)):
        assert found <= oracle.objective(updates, point) * (1 + 2e-6) + 1e-9


@quick
@given(updates=cohorts, f=st.integers(0, 2))
def test_a_trimmed_mean_lies_between_mean_and_median(updates, f):
    result, _ = step(TrimmedMean(f=f), updates)
    ordered = np.sort(updates, axis=0)
    assert result == pytest.approx(ordered[f : SIZE - f].mean(axis=0))


@quick
@given(
    raw=st.lists(st.floats(0, 1), min_size=2, max_size=9).filter(lambda w: sum(w) > 0.1),
    slack=st.floats(0, 1),
)
def test_capped_weights_keep_their_sum_and_order(raw, slack):
    weights = np.array(raw) / sum(raw)
    cap = 1 / len(weights) + slack * (1 - 1 / len(weights))
    result = capped(weights, cap)
    assert result.sum() == pytest.approx(1) and result.max() <= cap * (1 + 1e-9)
    order = np.argsort(weights, kind="stable")
    assert (np.diff(result[order]) >= -1e-9).all()


@pytest.mark.parametrize("rule", RULES)
@quick
@given(updates=cohorts, scale=st.sampled_from([1.0, 100.0]))
def test_every_rule_agrees_with_its_definition(rule, updates, scale):
    updates = scale * distinct(updates)
    expected, weights = oracle.RULES[rule](updates, SAMPLES)
    result, made = step(rule, updates)
    if rule == "geometric-median":
        best = oracle.objective(updates, expected)
        assert oracle.objective(updates, result) <= best * (1 + 2e-6)
        return
    assert result == pytest.approx(expected, abs=1e-6 * scale)
    if weights is not None:
        assert made.weights == pytest.approx(weights, abs=1e-6)
