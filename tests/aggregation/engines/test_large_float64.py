"""Krum and FedSDG where the squares of float64 updates leave float64: against numbers of 60 digits
and any size."""

import numpy as np
import pytest
import torch
from mpmath import mp, mpf, sqrt

from fedsdg.aggregation import aggregate, fedsdg_server_aggregate
from fedsdg.aggregation.engines.backends import backend
from fedsdg.aggregation.engines.rows import BlockRows, TensorRows
from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.krum import MultiKrum

from .large_attackers import attacked

SCALES = [1e140, 1e160, 1e200, 1e250, 1.7e308]
mp.dps = 60


def dot(a, b):
    return sum(mpf(float(x)) * mpf(float(y)) for x, y in zip(a, b, strict=True))


def aligned_weights(x, reference):
    """Eq. 10 and 11."""
    points = [[mpf(float(number)) for number in row] for row in x]
    alphas = []
    for k, row in enumerate(points):
        others = [p for j, p in enumerate(points) if reference == "mean" or j != k]
        z = [sum(column) / len(others) for column in zip(*others, strict=True)]
        inner = sum(a * b for a, b in zip(row, z, strict=True))
        lengths = sqrt(sum(a * a for a in row)) * sqrt(sum(a * a for a in z))
        alphas.append(max(mpf(0), inner / (lengths + mpf("1e-8"))))
    return np.array([float(alpha / sum(alphas)) for alpha in alphas])


def best_by_krum(x, f, count):
    points = [[mpf(float(number)) for number in row] for row in x]
    scores = []
    for k, row in enumerate(points):
        between = sorted(
            sum((a - b) ** 2 for a, b in zip(row, other, strict=True))
            for j, other in enumerate(points)
            if j != k
        )
        scores.append(sum(between[: len(x) - f - 2]))
    return sorted(range(len(x)), key=lambda k: scores[k])[:count]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("reference", ["mean", "leave_one_out"])
@pytest.mark.parametrize("where", ["torch", "numba"])
def test_fedsdg_weighs_small_updates_beside_large_ones(scale, reference, where, cohort):
    x = attacked(9, 2, 40, scale, "apart", seed=4)
    expected = aligned_weights(x, reference)
    assert (expected[2:] > 0.01).any()  # Small as they are, their directions count.
    with backend(where):
        rule = Alignment(reference=reference)
        found = rule({"update": torch.tensor(x)}, cohort(9), {})
        np.testing.assert_allclose(found.weights, expected, atol=1e-9)
        norms = np.linalg.norm(x[2:], axis=1)
        np.testing.assert_allclose(found.diagnostics["update_norm"][2:], norms, rtol=1e-9)
        theta = {"a": np.zeros(25), "b": np.zeros(15)}
        clients = [{"a": row[:25], "b": row[25:]} for row in x]
        weights = aggregate(rule, theta, clients).weights
        np.testing.assert_allclose(weights, expected, atol=1e-9)
    tensors = [{"w": torch.tensor(row)} for row in x]
    _, weights = fedsdg_server_aggregate(
        {"w": torch.zeros(40, dtype=torch.float64)}, tensors, reference=reference
    )
    np.testing.assert_allclose(weights, expected, atol=1e-9)


@pytest.mark.parametrize("scale", SCALES)
def test_blocks_of_columns_of_different_scales_add_up(scale, cohort):
    """The first block of columns holds small numbers only."""
    x = attacked(7, 2, 30, scale, "apart", seed=2)
    x[:, :10] = np.random.default_rng(0).normal(size=(7, 10))
    x = torch.tensor(x)
    parts = [slice(0, 10), slice(10, 20), slice(20, 30)]
    rows = BlockRows(lambda: ((part, x[:, part]) for part in parts), (7, 30), torch.float64)
    expected = aligned_weights(x.numpy(), "mean")
    for each in (rows, TensorRows(x)):
        plan = Alignment().plan({"update": each}, cohort(7), {})
        np.testing.assert_allclose(plan.weights, expected, atol=1e-9)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("honest", [1.0, 1e-3])
@pytest.mark.parametrize("where", ["torch", "numba"])
def test_krum_tells_honest_updates_apart_beside_large_ones(scale, honest, where, cohort):
    x = attacked(11, 3, 12, scale, "apart", seed=1)
    x[3:] *= honest
    with backend(where):
        for count in (1, 4):
            found = MultiKrum(3, count)({"update": torch.tensor(x)}, cohort(11), {})
            best = best_by_krum(x, 3, count)
            assert sorted(np.flatnonzero(found.weights)) == sorted(best)
            assert found.diagnostics["winner"] == best[0]
        clients = list(x)
        assert aggregate({"type": "krum", "f": 3}, np.zeros(12), clients).weights == [
            float(k == best[0]) for k in range(11)
        ]
    between = [dot(x[best[0]] - x[k], x[best[0]] - x[k]) for k in range(3, 11) if k != best[0]]
    expected = float(sum(sorted(between)[: 11 - 3 - 2]))
    assert found.diagnostics["score"][best[0]] == pytest.approx(expected, rel=1e-9)


def test_krum_with_equal_updates_in_float64_takes_the_first(cohort):
    """Their squared distances are 0, as if no float had room for them."""
    x = torch.zeros(7, 5, dtype=torch.float64)
    found = MultiKrum(1, 2)({"update": x}, cohort(7), {})
    assert np.flatnonzero(found.weights).tolist() == [0, 1]
    assert found.diagnostics["score"].tolist() == [0.0] * 7
