"""FOCUS: closed forms of the credibility, and what it is to do about wrong labels."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from fedsdg.aggregation.rules.focus import Focus
from fedsdg.aggregation.rules.mean import Mean


def run(rule, losses, cohort, samples=None, updates=None):
    """losses: [M, 2], on the benchmark set and of the server's model."""
    losses = torch.tensor(np.asarray(losses, dtype=float))
    size = len(losses)
    uploads = {
        "update": torch.eye(size, dtype=torch.float64) if updates is None else updates,
        "benchmark_loss": losses[:, :1],
        "global_loss": losses[:, 1:],
    }
    samples = np.ones(size, dtype=int) if samples is None else np.array(samples)
    return rule(uploads, cohort(size, samples=samples), {})


def test_two_clients_by_hand(cohort):
    """E = (1, 1 + ln 3): softmax (1/4, 3/4), so C = (3/4, 1/4), and n = (1, 2)."""
    aggregate = run(Focus(), [[0.25, 0.75], [np.log(3), 1.0]], cohort, samples=[1, 2])
    np.testing.assert_allclose(aggregate.diagnostics["credibility"], [0.75, 0.25])
    np.testing.assert_allclose(aggregate.diagnostics["mutual_loss"], [1, 1 + np.log(3)])
    np.testing.assert_allclose(aggregate.weights, [0.6, 0.4])
    np.testing.assert_allclose(aggregate.steps[0], [0.6, 0.4])


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), temperature=st.floats(1e-6, 20))
def test_random_cases_against_the_formula(cohort, seed, temperature):
    generator = np.random.default_rng(seed)
    size = int(generator.integers(2, 9))
    losses = generator.uniform(0, 5, size=(size, 2))
    samples = generator.integers(1, 100, size)
    rule = Focus(temperature=temperature)
    aggregate = run(rule, losses, cohort, samples)
    credibility = 1 - softmax(temperature * losses.sum(1))
    np.testing.assert_allclose(aggregate.diagnostics["credibility"], credibility, atol=1e-12)
    assert aggregate.diagnostics["credibility"].sum() == pytest.approx(size - 1)
    weights = samples * credibility
    np.testing.assert_allclose(aggregate.weights, weights / weights.sum(), atol=1e-12)
    shifted = run(rule, losses + 3.0, cohort, samples)
    np.testing.assert_allclose(shifted.weights, aggregate.weights, atol=1e-9)


def test_a_higher_loss_of_either_kind_means_a_lower_weight(cohort):
    weights = run(Focus(), [[1, 1], [2, 1], [1, 2], [3, 3]], cohort).weights
    assert weights[0] > weights[1] == pytest.approx(weights[2])
    assert weights[2] > weights[3]


def test_at_the_least_temperature_samples_count_alone(cohort):
    updates = torch.randn(4, 6).double()
    rule = Focus(temperature=1e-6)
    aggregate = run(rule, np.arange(8).reshape(4, 2), cohort, [3, 1, 4, 2], updates)
    mean = Mean("samples")({"update": updates}, cohort(4, samples=np.array([3, 1, 4, 2])), {})
    np.testing.assert_allclose(aggregate.weights, mean.weights, rtol=1e-5)
    torch.testing.assert_close(aggregate.steps, mean.steps, rtol=1e-4, atol=1e-5)


def test_a_single_client_has_no_credibility_and_all_the_weight(cohort):
    aggregate = run(Focus(), [[0.3, 0.4]], cohort, samples=[7])
    assert aggregate.diagnostics["credibility"].tolist() == [0.0]
    assert aggregate.weights.tolist() == [1.0]


def test_where_no_one_has_credible_samples_the_weights_are_uniform(cohort):
    """The second has all of the softmax, so C = (1, 0), and the first has no samples."""
    aggregate = run(Focus(), [[0, 0], [1e4, 0]], cohort, samples=[0, 5])
    assert aggregate.diagnostics["credibility"].tolist() == [1.0, 0.0]
    assert aggregate.weights.tolist() == [0.5, 0.5]


def test_large_losses_do_not_overflow(cohort):
    aggregate = run(Focus(temperature=100), [[1e5, 1], [2e5, 1], [1e5, 1]], cohort)
    np.testing.assert_allclose(aggregate.weights, [0.5, 0, 0.5])


def test_an_update_of_no_weight_is_looked_at(cohort):
    updates = torch.ones(2, 3)
    updates[1, 0] = torch.nan
    with pytest.raises(FloatingPointError, match="client 1: upload 'update' has 1 non-finite"):
        run(Focus(), [[0, 0], [1e4, 0]], cohort, updates=updates)


def test_bad_losses_and_options_are_refused(cohort):
    with pytest.raises(FloatingPointError, match="client 1: upload 'global_loss' has 1 non-fin"):
        run(Focus(), [[0, 0], [0, np.nan]], cohort)
    uploads = {name: torch.ones(2, 2) for name in ("update", "benchmark_loss", "global_loss")}
    with pytest.raises(ValueError, match=r"'benchmark_loss' has shape \(2, 2\); a loss is one"):
        Focus()(uploads, cohort(2), {})
    with pytest.raises(ValueError, match="upload 'benchmark_loss' is missing"):
        Focus()({"update": torch.ones(2, 2)}, cohort(2), {})
    for temperature in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="temperature"):
            Focus(temperature=temperature)
