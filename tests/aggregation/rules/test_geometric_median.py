"""The geometric median: its objective against scipy's minimum, and cases with a known answer."""

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsdg.aggregation.engines.rows import TensorRows
from fedsdg.aggregation.rules.geometric_median import (
    GeometricMedian,
    geometric_median,
    geometric_median_weights,
)


def objective(z, x):
    return np.linalg.norm(x - z, axis=1).sum()


def gradient(z, x):
    lengths = np.maximum(np.linalg.norm(x - z, axis=1, keepdims=True), 1e-300)
    return ((z - x) / lengths).sum(0)


def scipy_minimum(x):
    """The lowest objective scipy finds from the mean and the median, and of the data points."""
    values = [objective(point, x) for point in x]
    for start in (x.mean(0), np.median(x, axis=0)):
        for method in ("BFGS", "Nelder-Mead"):
            jac = gradient if method == "BFGS" else None
            options = {"gtol": 1e-12} if jac else {"xatol": 1e-12, "fatol": 1e-14, "maxiter": 20000}
            found = scipy.optimize.minimize(
                objective, start, args=(x,), jac=jac, method=method, options=options
            )
            values.append(found.fun)
    return min(values)


EXACT = GeometricMedian(tolerance=1e-9)


def run(x, cohort):
    return EXACT({"update": torch.tensor(x)}, cohort(len(x)), {})


def assert_minimal(x, cohort, minimum=None, rel=1e-6):
    aggregate = run(x, cohort)
    minimum = scipy_minimum(x) if minimum is None else minimum
    reached = objective(aggregate.steps[0].numpy(), x)
    assert reached <= minimum * (1 + rel) + 1e-300
    assert aggregate.diagnostics["objective"] == pytest.approx(reached, rel=1e-6)
    assert (aggregate.weights >= 0).all()
    assert aggregate.weights.sum() == pytest.approx(1, abs=1e-12)
    return aggregate


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(2, 9),
    d=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    far=st.sampled_from([1.0, 30.0, 1e4]),
)
def test_objective_is_scipys_minimum(cohort, size, d, seed, far):
    x = np.random.default_rng(seed).normal(size=(size, d))
    x[: (size - 1) // 2] *= far
    aggregate = assert_minimal(x, cohort)
    assert aggregate.diagnostics["iterations"] < 200


@settings(max_examples=150, deadline=None)
@given(
    size=st.integers(3, 15), d=st.integers(2, 30), seed=st.integers(0, 10**6), far=st.floats(0, 2)
)
def test_the_subgradient_vanishes(cohort, size, d, seed, far):
    """The certificate, recomputed in full space: 2 ||g|| / M bounds the relative excess.

    With points much farther away than this, rounding of the objective leaves a larger gradient.
    """
    x = np.random.default_rng(seed).normal(size=(size, d))
    x[: (size - 1) // 2] *= 10**far
    z = run(x, cohort).steps[0].numpy()
    nearest = np.linalg.norm(x - z, axis=1)
    at = nearest < 1e-9 * np.median(nearest)
    pull = np.linalg.norm(gradient(z, x[~at]))
    assert 2 * max(pull - at.sum(), 0) / size < 1e-6


def test_three_points_of_a_triangle(cohort):
    """Fermat's point of an equilateral triangle is its centre; beyond 120 degrees, the vertex."""
    x = np.array([[0.0, 0], [1, 0], [0.5, np.sqrt(3) / 2]])
    np.testing.assert_allclose(run(x, cohort).steps[0], x.mean(0), atol=1e-8)
    x = np.array([[0.0, 0.1], [-1, 0], [1, 0]])
    np.testing.assert_array_equal(run(x, cohort).steps[0], x[0])


def test_square_with_one_corner_far_away(cohort):
    """A convex quadrilateral: the crossing of its diagonals."""
    x = np.array([[0.0, 0], [4, 0], [0, 4], [1e3, 1e3]])
    np.testing.assert_allclose(run(x, cohort).steps[0], [2, 2], rtol=1e-6)


def test_a_majority_at_one_point_wins(cohort):
    generator = np.random.default_rng(0)
    for far in (1.0, 1e6, 1e150):
        x = generator.normal(size=(9, 6))
        x[:5] = x[0]
        x[5:] *= far
        aggregate = run(x, cohort)
        np.testing.assert_allclose(aggregate.steps[0], x[0], rtol=1e-12)
        np.testing.assert_allclose(aggregate.weights[:5], 0.2)


@pytest.mark.parametrize("excess", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize("sign", [-1, 1])
def test_optimum_at_or_close_to_a_data_point(excess, sign, cohort):
    """Two unit vectors pull the origin with 1 + sign * excess: the optimum is at it, or near."""
    half = np.arccos((1 + sign * excess) / 2)
    x = np.array([[0.0, 0], [np.cos(half), np.sin(half)], [np.cos(half), -np.sin(half)]])
    aggregate = assert_minimal(x, cohort, rel=1e-9)
    at_origin = not aggregate.steps.any()
    assert at_origin == (sign < 0)


@settings(max_examples=60, deadline=None)
@given(size=st.integers(2, 11), seed=st.integers(0, 10**6), d=st.integers(1, 5))
def test_collinear_points(cohort, size, seed, d):
    """On a line it is the median: any point between the two middle values."""
    generator = np.random.default_rng(seed)
    t, direction = generator.normal(size=size), generator.normal(size=d)
    x = 3.0 + t[:, None] * direction
    minimum = np.abs(t - np.median(t)).sum() * np.linalg.norm(direction)
    assert_minimal(x, cohort, minimum, rel=1e-9)


def test_two_points_give_their_mean_whatever_the_order(cohort):
    x = np.array([[0.0, 0], [2, 4]])
    for rows in (x, x[::-1].copy()):
        np.testing.assert_allclose(run(rows, cohort).steps[0], [1, 2])


def test_zero_updates_among_others(cohort):
    """A zero update is a data point like another: no division by its distance."""
    x = np.array([[0.0, 0], [0, 0], [0, 0], [1, 1], [2, -1]])
    assert not run(x, cohort).steps.any()
    assert_minimal(np.vstack([np.zeros(3), np.random.default_rng(0).normal(size=(6, 3))]), cohort)


def test_an_arbitrary_minority_cannot_carry_it_away(cohort):
    generator = np.random.default_rng(1)
    x = generator.normal(size=(11, 30))
    for far in (1e3, 1e6, 1e12):
        attacked = x.copy()
        attacked[:4] = far * generator.normal(size=30)
        step = run(attacked, cohort).steps[0].numpy()
        assert np.linalg.norm(step - x[4:].mean(0)) < 12


def test_float32_rows_with_a_large_common_part(cohort):
    """Common part 1e4 times the spread, d = 50 000: the excess is judged within the spread."""
    generator = np.random.default_rng(2)
    x = (1e4 * generator.normal(size=50_000) + generator.normal(size=(7, 50_000))).astype("f4")
    aggregate = EXACT({"update": torch.tensor(x)}, cohort(7), {})
    exact = x.astype(float)
    z = aggregate.weights @ exact
    assert np.linalg.norm(gradient(z, exact)) / 7 < 1e-7


def test_fewer_iterations_are_reported(cohort):
    x = torch.tensor(np.random.default_rng(5).normal(size=(7, 4)))
    short, full = (geometric_median(TensorRows(x), cohort(7), 1e-9, most) for most in (1, 1000))
    assert short.residual > 1e-4 > 1e-9 > full.residual
    assert full.iterations > short.iterations == 1
    assert run(x.numpy(), cohort).diagnostics["iterations"] == full.iterations


def test_the_tolerance_bounds_the_residual(cohort):
    """Whose default is that of the configs: a looser one takes fewer iterations."""
    x = torch.tensor(np.random.default_rng(5).normal(size=(7, 4)))
    iterations = []
    for rule in (EXACT, GeometricMedian(), GeometricMedian(0.1)):
        found = rule({"update": x}, cohort(7), {}).diagnostics
        assert 2 * found["residual"] <= rule.tolerance
        iterations.append(found["iterations"])
    assert GeometricMedian().tolerance == 1e-6
    assert iterations == sorted(iterations, reverse=True) and iterations[0] > iterations[2]


def test_weights_from_distances_alone():
    x = np.array([0.0, 1, 5])
    solution = geometric_median_weights((x[:, None] - x) ** 2)
    assert solution.weights.tolist() == [0, 1, 0]
    assert solution.objective == pytest.approx(5)


def test_impossible_options_are_refused():
    for options in ({"tolerance": 0.0}, {"tolerance": 1.0}, {"tolerance": "1e-6"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            GeometricMedian(**options)
