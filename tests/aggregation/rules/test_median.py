"""The coordinate-wise median against numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsdg.aggregation.rules.median import CoordinateMedian


@settings(max_examples=100, deadline=None)
@given(size=st.integers(1, 12), d=st.integers(1, 30), seed=st.integers(0, 10**6))
def test_matches_numpy(cohort, size, d, seed):
    x = np.random.default_rng(seed).normal(size=(size, d))
    aggregate = CoordinateMedian()({"update": torch.tensor(x)}, cohort(size), {})
    np.testing.assert_allclose(aggregate.steps[0].numpy(), np.median(x, axis=0), rtol=1e-15)
    assert aggregate.weights is None


def test_even_number_is_the_mean_of_the_two_middle_values(cohort):
    updates = torch.tensor([[1.0], [2.0], [4.0], [100.0]])
    assert CoordinateMedian()({"update": updates}, cohort(4), {}).steps.item() == 3.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_middle_of_two_large_values_does_not_overflow(dtype, cohort):
    largest = torch.finfo(dtype).max
    updates = torch.tensor([[largest], [largest]], dtype=dtype)
    assert CoordinateMedian()({"update": updates}, cohort(2), {}).steps.item() == largest


def test_many_columns(cohort):
    x = np.random.default_rng(0).normal(size=(6, 300_000)).astype(np.float32)
    aggregate = CoordinateMedian()({"update": torch.tensor(x)}, cohort(6), {})
    np.testing.assert_allclose(aggregate.steps[0], np.median(x.astype(float), axis=0), rtol=1e-6)
