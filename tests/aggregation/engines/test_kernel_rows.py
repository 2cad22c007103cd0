"""Kernels on rows by address: vectors anywhere in memory, less an origin, in every storage.

Against numpy in float64 on the differences as they are stored: theta_k - theta_g rounded once.
"""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsdg.aggregation.engines.kernels import columns, sums, trimmed_means
from fedsdg.aggregation.engines.kernels.columns import as_rows, parameter_rows
from fedsdg.aggregation.engines.statistics import distances_by_kernels, measured_by_kernels
from fedsdg.aggregation.rules.krum import krum_scores

STORAGES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
PLACES = st.sampled_from([1, 63, 64, 65, 127, 128, 129, 255, 257, 511, 513, 1025, 4095, 4097])
"""Numbers of columns about the borders of blocks."""


def parameters(size, d, dtype, scale, seed):
    """Clients, each in its own memory, scale away from an origin of order 1, and the origin."""
    generator = np.random.default_rng(seed)
    origin = generator.normal(size=d)
    clients = origin + scale * generator.normal(size=(size, d))
    # Each on an odd place of its own, so that not all are aligned alike.
    places = [torch.empty(d + 1 + k % 5, dtype=dtype)[1 + k % 5 :] for k in range(size)]
    for place, client in zip(places, clients, strict=True):
        place.copy_(torch.tensor(client))
    return places, torch.tensor(origin).to(dtype)


def differences(clients, origin, dtype):
    """What the kernels call x_k, in numpy: formed in float64, rounded to dtype."""
    o = 0 if origin is None else origin.double()
    rounded = torch.stack([(client.double() - o).to(dtype) for client in clients])
    return rounded.double().numpy()


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 70),
    d=st.one_of(PLACES, st.integers(1, 3000)),
    storage=st.sampled_from(STORAGES),
    wide=st.booleans(),
    with_origin=st.booleans(),
    scale=st.sampled_from([1.0, 1e-2, 3e-5]),
    seed=st.integers(0, 10**6),
)
def test_everything_on_parameters(size, d, storage, wide, with_origin, scale, seed):
    clients, origin = parameters(size, d, storage, scale, seed)
    origin = origin if with_origin else None
    dtype = torch.float64 if wide or storage == torch.float64 else torch.float32
    rows = parameter_rows(clients, origin, dtype)
    x = differences(clients, origin, dtype)
    rtol = 1e-13 if dtype == torch.float64 else 4e-6
    generator = np.random.default_rng(seed)
    c = generator.normal(size=size)

    found = measured_by_kernels(rows, c)
    lengths, z = np.linalg.norm(x, axis=1), c @ x
    reach = np.abs(c) @ lengths
    np.testing.assert_allclose(found.norms, lengths, rtol=rtol)
    assert (np.abs(found.dots - x @ z) <= rtol * lengths * reach).all()
    assert abs(found.reference_norm - np.linalg.norm(z)) <= rtol * reach
    expected = ((x[:, None, :64] - x[None, :, :64]) ** 2).sum(-1)
    near = parameter_rows([client[:64] for client in clients], origin, dtype)._replace(d=min(64, d))
    np.testing.assert_allclose(distances_by_kernels(near), expected, rtol=rtol)

    # Sums are of the differences before they are rounded.
    exact = differences(clients, origin, torch.float64)
    for base in (None, origin):
        out = torch.empty(d, dtype=storage)
        assert sums.weighted_sum(rows, c, out, base)
        start = 0 if base is None else base.double().numpy()
        close(out, start + c @ exact, np.abs(start) + np.abs(c) @ np.abs(exact))
    trim = (size - 1) // 2 if seed % 2 else size // 4
    kept = np.sort(x, axis=0)[trim : size - trim]
    for base in (None, origin):
        out = torch.empty(d, dtype=storage)
        assert trimmed_means.trimmed_mean(rows, trim, out, base)
        start = 0 if base is None else base.double().numpy()
        close(out, start + kept.mean(axis=0), np.abs(start) + np.abs(kept).max(axis=0))


def close(out, expected, reach):
    """Within one rounding to the dtype of `out`, beside those in float64."""
    info = torch.finfo(out.dtype)
    allowed = 0.5001 * info.eps * np.maximum(np.abs(expected), info.tiny) + 4e-15 * reach
    assert (np.abs(out.double().numpy() - expected) <= allowed).all()


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("size", [3, 40])
def test_written_over_the_origin_itself(storage, size):
    clients, origin = parameters(size, 10_001, storage, 0.1, 0)
    rows, weights = parameter_rows(clients, origin), np.arange(1, size + 1) / size**2
    expected = torch.empty_like(origin)
    sums.weighted_sum(rows, weights, expected, origin)
    median = torch.empty_like(origin)
    trimmed_means.trimmed_mean(rows, 1, median, origin)
    again = origin.clone()
    sums.weighted_sum(parameter_rows(clients, again), weights, again, again)
    assert torch.equal(again, expected)
    again = origin.clone()
    trimmed_means.trimmed_mean(parameter_rows(clients, again), 1, again, again)
    assert torch.equal(again, median)


@pytest.mark.parametrize("storage", STORAGES)
def test_without_movement_the_step_is_zero_and_the_sum_the_origin(storage):
    origin = torch.randn(3000).to(storage)
    rows = parameter_rows([origin.clone() for _ in range(7)], origin)
    out, weights = torch.empty_like(origin), np.full(7, 1 / 7)
    sums.weighted_sum(rows, weights, out)
    assert not out.any()
    sums.weighted_sum(rows, weights, out, origin)
    assert torch.equal(out, origin)
    found = measured_by_kernels(rows)
    assert not found.norms.any()
    assert not found.dots.any()


def test_small_updates_of_large_parameters_keep_their_digits():
    """d = 1e6, updates of 3e-5 from parameters of order 1: nothing cancels but the parameters.

    One client is a hundredth of the way from another: their distance is the least, by 1 %, and the
    winner of Krum, by less, is that of exact arithmetic.
    """
    generator = np.random.default_rng(1)
    d, size = 1_000_000, 10
    origin = torch.tensor(generator.normal(size=d)).float()
    steps = 3e-5 * generator.normal(size=(size, d))
    steps[7] += 0.01 * (steps[4] - steps[7])
    clients = [(origin.double() + torch.tensor(step)).float() for step in steps]
    x = differences(clients, origin, torch.float32)
    rows = parameter_rows(clients, origin)

    found, mean = measured_by_kernels(rows), x.mean(axis=0)
    lengths = np.linalg.norm(x, axis=1)
    np.testing.assert_allclose(found.norms, lengths, rtol=1e-7)
    np.testing.assert_allclose(found.dots, x @ mean, rtol=0, atol=1e-7 * lengths.max() ** 2)
    alphas = np.maximum(0, found.dots / (found.norms * found.reference_norm + 1e-8))
    expected = np.maximum(0, x @ mean / (lengths * np.linalg.norm(mean) + 1e-8))
    np.testing.assert_allclose(alphas / alphas.sum(), expected / expected.sum(), rtol=1e-6)

    between = distances_by_kernels(rows)
    exact = np.array([[((a - b) ** 2).sum() for b in x] for a in x])
    np.testing.assert_allclose(between, exact, rtol=1e-7)
    assert set(np.argwhere(between == between[between > 0].min())[0]) == {4, 7}
    assert krum_scores(between, 3).argmin() == krum_scores(exact, 3).argmin()


def test_an_attacker_far_away_does_not_blur_the_distances_of_the_others():
    generator = np.random.default_rng(2)
    common = generator.normal(size=50_000)
    x = common + 1e-4 * generator.normal(size=(40, 50_000))
    x[11] *= 1e6
    rows = torch.tensor(x).float()
    rows[3] = rows[30]
    y = rows.double().numpy()
    expected = np.array([((row - y) ** 2).sum(axis=1) for row in y])
    between = distances_by_kernels(as_rows(rows))
    np.testing.assert_allclose(between, expected, rtol=1e-6)
    np.testing.assert_array_equal(between, between.T)
    assert between[3, 30] == 0


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_seen_anywhere(storage, value):
    for k, j in [(0, 0), (2, 127), (4, 128), (1, 2999)]:
        clients, origin = parameters(5, 3000, storage, 0.1, 0)
        clients[k][j] = value
        rows = parameter_rows(clients, origin)
        out = torch.empty_like(origin)
        found = measured_by_kernels(rows) if storage != torch.float64 else None
        assert found is None or not np.isfinite(found.norms[k])
        assert not sums.weighted_sum(rows, np.full(5, 0.2), out)
        assert not torch.isfinite(out[j])
        assert not trimmed_means.trimmed_mean(rows, 1, out)
        assert torch.isnan(out).nonzero().tolist() == [[j]]


def test_a_sum_that_overflows_its_storage_is_reported():
    rows = as_rows(torch.full((2, 300), 60_000.0, dtype=torch.float16))
    out = torch.empty(300, dtype=torch.float16)
    assert sums.weighted_sum(rows, np.array([0.5, 0.5]), out)
    assert not sums.weighted_sum(rows, np.array([1.0, 1.0]), out)
    assert torch.isinf(out).all()


def everything(rows):
    """All that kernels give, as a list of arrays."""
    weights, d = np.arange(1, rows.size + 1) / rows.size**2, rows.d
    total, trimmed = torch.empty(d, dtype=rows.storage), torch.empty(d, dtype=rows.storage)
    sums.weighted_sum(rows, weights, total)
    trimmed_means.trimmed_mean(rows, 1, trimmed)
    found = measured_by_kernels(rows)
    numbers = [found.norms, found.dots, found.reference_norm, distances_by_kernels(rows)]
    return numbers, [total.double().numpy(), trimmed.double().numpy()]


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("size", [5, 30])
def test_the_number_of_threads_changes_no_bit(storage, size, monkeypatch):
    monkeypatch.setattr(columns, "PART_BYTES", 1 << 14)
    rows = parameter_rows(*parameters(size, 9000, storage, 0.1, 3))
    results = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        try:
            results.append([*itertools.chain(*everything(rows))])
        finally:
            torch.set_num_threads(1)
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("storage", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("exponent", [-20, 3])
def test_units_that_are_powers_of_two_change_no_digit(storage, exponent):
    clients, origin = parameters(7, 5000, storage, 0.1, 4)
    unit = 2.0**exponent
    squares, vectors = everything(parameter_rows(clients, origin))
    scaled = parameter_rows([client * unit for client in clients], origin * unit)
    scaled_squares, scaled_vectors = everything(scaled)
    powers = [unit, unit**2, unit, unit**2]
    for one, two, power in zip(squares, scaled_squares, powers, strict=True):
        np.testing.assert_array_equal(one * power, two)
    for one, two in zip(vectors, scaled_vectors, strict=True):
        np.testing.assert_array_equal(one * unit, two)


def test_the_order_of_the_clients_changes_no_distance_and_no_median():
    clients, origin = parameters(13, 5000, torch.float32, 0.1, 5)
    order = np.random.default_rng(0).permutation(13)
    rows = parameter_rows(clients, origin)
    shuffled = parameter_rows([clients[k] for k in order], origin)
    between = distances_by_kernels(rows)
    np.testing.assert_array_equal(distances_by_kernels(shuffled), between[np.ix_(order, order)])
    results = [torch.empty(5000), torch.empty(5000)]
    for some, out in zip((rows, shuffled), results, strict=True):
        trimmed_means.trimmed_mean(some, 6, out)
    assert torch.equal(*results)
