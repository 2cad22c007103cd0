"""The plain reference against numpy in float64 (longdouble where float64 would cancel)."""

import numpy as np
import pytest
import torch

from fedsdg.aggregation.engines.backends import backend
from fedsdg.aggregation.engines.statistics import measure, squared_distances, weighted_sum


@pytest.fixture(autouse=True)
def _reference():
    with backend("torch"):
        yield


def rows(size=5, d=200_000, dtype=torch.float32, seed=0):
    values = np.random.default_rng(seed).normal(size=(size, d)) + 0.2
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_measure_is_exact_to_float64(dtype):
    x = rows(dtype=dtype)
    y = x.double().numpy()
    s = measure(x, gram=True)
    mean = y.mean(0)
    assert s.unit == 1
    np.testing.assert_allclose(s.norms, np.linalg.norm(y, axis=1), rtol=1e-12)
    np.testing.assert_allclose(s.dots, y @ mean, rtol=1e-11)
    assert s.reference_norm == pytest.approx(np.linalg.norm(mean), rel=1e-12)
    centred = y - mean
    np.testing.assert_allclose(s.gram, centred @ centred.T, rtol=1e-10)
    assert measure(x).gram is None


def test_measure_with_another_reference():
    x, c = rows(dtype=torch.float64, d=70_000), np.array([0.5, -1.0, 0.0, 2.0, 0.1])
    y = x.numpy()
    s = measure(x, c, gram=True)
    np.testing.assert_allclose(s.dots, y @ (c @ y), rtol=1e-10)
    assert s.reference_norm == pytest.approx(np.linalg.norm(c @ y), rel=1e-12)
    centred = y - y.mean(0)
    np.testing.assert_allclose(s.gram, centred @ centred.T, rtol=1e-10)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e300])
def test_unit_keeps_float64_rows_in_range(scale):
    x = rows(d=500, dtype=torch.float64)
    one, two = measure(x), measure(x * scale)
    np.testing.assert_allclose(two.norms * (two.unit / scale), one.norms, rtol=1e-12)
    np.testing.assert_allclose(two.dots * (two.unit / scale) ** 2, one.dots, rtol=1e-10)
    assert np.log2(two.unit) % 1 == 0


def test_distances_match_differences():
    x = rows(d=100_000)
    y = x.double().numpy()
    expected = ((y[:, None] - y[None]) ** 2).sum(-1)
    distances, unit = squared_distances(x)
    assert unit == 1
    np.testing.assert_allclose(distances, expected, rtol=1e-10)
    np.testing.assert_array_equal(distances, distances.T)


@pytest.mark.parametrize("far", [1e3, 1e8, 1e12])
def test_distances_of_near_rows_survive_one_far_away(far):
    x = rows(d=5_000, dtype=torch.float64)
    x[3] *= far
    y = x.numpy()
    expected = ((y[:, None] - y[None]) ** 2).sum(-1)
    np.testing.assert_allclose(squared_distances(x)[0], expected, rtol=1e-11)


def test_distances_survive_a_large_common_part():
    """Spread / common = 1e-6: the Gram of uncentred rows would keep 4 digits of 16."""
    generator = np.random.default_rng(1)
    y = 1e6 * generator.normal(size=20_000) + generator.normal(size=(6, 20_000))
    expected = ((y[:, None] - y[None]) ** 2).sum(-1)
    np.testing.assert_allclose(squared_distances(torch.tensor(y))[0], expected, rtol=1e-11)


def test_equal_rows_have_distance_zero():
    x = rows(d=3_000)
    x[4] = x[1]
    distances, _ = squared_distances(x)
    assert distances[1, 4] == 0
    assert (distances[1, [0, 2, 3]] > 0).all()
    assert not squared_distances(x[:1].repeat(4, 1))[0].any()


def test_weighted_sum():
    x, w = rows(d=150_000), np.array([0.1, 0.2, 0.3, 0.4, -1.0])
    expected = torch.tensor(w @ x.double().numpy(), dtype=torch.float32)
    assert torch.equal(weighted_sum(x, w), expected) or torch.allclose(
        weighted_sum(x, w), expected, rtol=2e-7, atol=1e-7
    )


def test_no_float64_copy_of_the_rows_is_made():
    """The largest tensor allocated is a block, far below the [M, d] matrix in float64."""
    x = rows(size=20, d=200_000)
    with torch.profiler.profile(profile_memory=True, record_shapes=False) as profile:
        measure(x, gram=True)
        weighted_sum(x, np.full(20, 0.05))
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert 0 < largest < 0.3 * 8 * x.numel()


def test_no_columns():
    s = measure(torch.zeros(3, 0), gram=True)
    assert not s.norms.any()
    assert not s.gram.any()
    assert weighted_sum(torch.zeros(3, 0), np.ones(3)).shape == (0,)
