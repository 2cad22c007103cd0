"""The coordinate-wise trimmed mean against scipy, and what it is for: a bounded influence."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.median import CoordinateMedian
from fedsdg.aggregation.rules.trimmed_mean import TrimmedMean


def step(rule, x, cohort):
    return rule({"update": torch.tensor(x)}, cohort(len(x)), {}).steps[0].numpy()


@settings(max_examples=100, deadline=None)
@given(size=st.integers(1, 12), d=st.integers(1, 30), seed=st.integers(0, 10**6), data=st.data())
def test_matches_scipy(cohort, size, d, seed, data):
    f = data.draw(st.integers(0, (size - 1) // 2))
    x = np.random.default_rng(seed).normal(size=(size, d))
    # scipy cuts off the proportion, rounded down, at each end.
    expected = stats.trim_mean(x, (f + 0.5) / size, axis=0)
    np.testing.assert_allclose(step(TrimmedMean(f), x, cohort), expected, rtol=1e-12, atol=1e-15)


def test_nothing_trimmed_is_the_mean_and_all_but_the_middle_the_median(cohort):
    x = np.random.default_rng(1).normal(size=(8, 100))
    uniform, median = Mean("uniform"), CoordinateMedian()
    np.testing.assert_allclose(step(TrimmedMean(0), x, cohort), step(uniform, x, cohort), 1e-12)
    np.testing.assert_array_equal(step(TrimmedMean(3), x, cohort), step(median, x, cohort))


@pytest.mark.parametrize("far", [1e6, -1e30])
def test_f_attackers_of_any_size_stay_within_the_honest(far, cohort):
    x = np.random.default_rng(2).normal(size=(7, 50))
    x[[1, 4]] = far
    honest = np.delete(x, [1, 4], axis=0)
    found = step(TrimmedMean(2), x, cohort)
    assert (honest.min(axis=0) <= found).all()
    assert (found <= honest.max(axis=0)).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_large_values_do_not_overflow(dtype, cohort):
    largest = torch.finfo(dtype).max
    updates = torch.full((5, 3), largest, dtype=dtype)
    found = TrimmedMean(1)({"update": updates}, cohort(5), {}).steps[0]
    torch.testing.assert_close(found, updates[0])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_trimmed_value_that_is_not_finite_is_an_error_still(value, cohort):
    x = np.random.default_rng(3).normal(size=(5, 40))
    x[2, 17] = value
    with pytest.raises(ValueError, match="client 2: upload 'update' has 1 non-finite"):
        step(TrimmedMean(1), x, cohort)


def test_too_few_clients(cohort):
    with pytest.raises(ValueError, match=r"f=2 needs at least 2f\+1 = 5 clients .* at most 1"):
        step(TrimmedMean(2), np.ones((4, 3)), cohort)
    with pytest.raises(ValueError, match="f is -1, but must be at least 0"):
        TrimmedMean(-1)
