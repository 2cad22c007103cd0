"""Weights of the mean, by each of its counts."""

import dataclasses

import numpy as np
import pytest
import torch

from fedsdg.aggregation.rules.mean import Mean

UPDATES = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [("samples", [0.25, 0.75]), ("uniform", [0.5, 0.5]), ("batches", [0.4, 0.6])],
)
def test_weights(weights, expected, cohort):
    context = dataclasses.replace(
        cohort(2), num_samples=np.array([10, 30]), num_batches=np.array([2, 3])
    )
    aggregate = Mean(weights)({"update": UPDATES}, context, {})
    np.testing.assert_allclose(aggregate.weights, expected)
    np.testing.assert_allclose(aggregate.steps[0], expected)


def test_counts_without_mass_are_refused(cohort):
    context = dataclasses.replace(cohort(2), num_samples=np.zeros(2))
    with pytest.raises(ValueError, match="cannot weigh by samples"):
        Mean()({"update": UPDATES}, context, {})
    with pytest.raises(
        ValueError, match="weights is 'size', but must be one of samples, uniform, batches"
    ):
        Mean("size")
