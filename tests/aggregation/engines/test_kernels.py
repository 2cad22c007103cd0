"""Kernels against numpy in float64, within the bounds that `statistics` states."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsdg import compiling
from fedsdg.aggregation.engines.backends import backend
from fedsdg.aggregation.engines.kernels import columns
from fedsdg.aggregation.engines.statistics import measure, squared_distances, weighted_sum
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.uploads import NonFiniteError

PRECISION = {torch.float64: 1e-13}
"""Of what is measured, relative; 4e-6 for the storages whose products are formed in float32."""
STORAGES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def _kernels():
    with backend("numba"):
        yield


def laid_out(rows, layout):
    """The same numbers with other strides."""
    size, d = rows.shape
    if layout == "apart":
        return torch.cat([rows, torch.full((size, 3), torch.nan, dtype=rows.dtype)], 1)[:, :d]
    if layout == "offset":
        return torch.cat([torch.full((size, 5), torch.nan, dtype=rows.dtype), rows], 1)[:, 5:]
    if layout == "transposed":
        return rows.T.contiguous().T
    if layout == "every second":
        return rows.repeat_interleave(2, dim=0)[::2]
    return rows


def unit_exponent(dtype, exponent):
    """From 1e-25 to 1e25, as far as the dtype goes; in float64 from 1e-250 to 1e250."""
    return {torch.float64: 10 * exponent, torch.float16: exponent // 12}.get(dtype, exponent)


def compare(x, unit, c=None):
    """Everything measured of x, divided by unit, against numpy."""
    y = x.double().numpy() / unit
    rtol = PRECISION.get(x.dtype, 4e-6)
    s = measure(x, c, gram=True)
    ratio = s.unit / unit
    lengths = np.linalg.norm(y, axis=1)
    coefficients = np.full(len(y), 1 / len(y)) if c is None else c
    z, reach = coefficients @ y, np.abs(coefficients) @ lengths
    np.testing.assert_allclose(s.norms * ratio, lengths, rtol=rtol)
    assert (np.abs(s.dots * ratio**2 - y @ z) <= rtol * lengths * reach).all()
    assert abs(s.reference_norm * ratio - np.linalg.norm(z)) <= rtol * reach
    between, pair_unit = squared_distances(x)
    expected = ((y[:, None] - y[None]) ** 2).sum(-1)
    if len(x) > 1:
        np.testing.assert_allclose(between * (pair_unit / unit) ** 2, expected, rtol=rtol)
    np.testing.assert_array_equal(between, between.T)
    centred = y - y.mean(0)
    bound = rtol * max(expected.max(), 1e-300)
    np.testing.assert_allclose(s.gram * ratio**2, centred @ centred.T, rtol=0, atol=bound)


@settings(max_examples=120, deadline=None)
@given(
    size=st.integers(1, 23),
    d=st.one_of(st.integers(1, 70), st.integers(900, 6000)),
    dtype=st.sampled_from(STORAGES),
    exponent=st.integers(-83, 83),
    layout=st.sampled_from(["plain", "apart", "offset", "transposed", "every second"]),
    reference=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_statistics(size, d, dtype, exponent, layout, reference, seed):
    """At update scales from 1e-25 to 1e25, and in float64 from 1e-250 to 1e250."""
    generator = np.random.default_rng(seed)
    unit = 2.0 ** unit_exponent(dtype, exponent)
    x = torch.tensor((generator.normal(size=(size, d)) + 0.1) * unit).to(dtype)
    compare(laid_out(x, layout), unit, generator.normal(size=size) if reference else None)


@settings(max_examples=40, deadline=None)
@given(size=st.integers(2, 9), seed=st.integers(0, 10**6))
def test_rows_of_very_different_scales(size, seed):
    """The squares of the small rows vanish in float32 beside those of the large, and overflow."""
    generator = np.random.default_rng(seed)
    scales = 10.0 ** generator.integers(-25, 26, size=(size, 1))
    x = torch.tensor(generator.normal(size=(size, 700)) * scales).float()
    compare(x, 1.0)
    compare(x, 1.0, 1 / scales[:, 0])


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 23),
    d=st.integers(1, 3000),
    dtype=st.sampled_from(STORAGES),
    exponent=st.integers(-83, 83),
    layout=st.sampled_from(["plain", "apart", "offset", "transposed"]),
    seed=st.integers(0, 10**6),
)
def test_weighted_sum(size, d, dtype, exponent, layout, seed):
    generator = np.random.default_rng(seed)
    x = torch.tensor(generator.normal(size=(size, d)) * 2.0 ** unit_exponent(dtype, exponent)).to(
        dtype
    )
    w = generator.normal(size=size)
    y = x.double().numpy()
    # One rounding to the dtype of the rows, beside those of the sum in float64.
    sums = np.maximum(np.abs(w @ y), torch.finfo(dtype).tiny)
    # float16 and bfloat16 are rounded by way of float32, as torch does it.
    bound = 0.5001 * torch.finfo(dtype).eps * sums + 4e-15 * (np.abs(w) @ np.abs(y))
    result = weighted_sum(laid_out(x, layout), w)
    assert result.dtype == dtype
    assert (np.abs(result.double().numpy() - w @ y) <= bound).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_equal_and_opposite_rows(dtype):
    x = torch.randn(6, 3000, dtype=dtype)
    x[1] = 0
    x[2] = -x[0]
    x[5] = x[3]
    between, _ = squared_distances(x)
    assert between[3, 5] == 0
    assert (between[~np.eye(6, dtype=bool)] == 0).sum() == 2
    assert measure(x).norms[1] == 0
    opposite = measure(torch.stack([x[0], x[2]]))
    assert opposite.reference_norm == 0
    assert not opposite.dots.any()
    assert not measure(torch.zeros_like(x)).norms.any()
    assert not squared_distances(x[:1].expand(6, -1))[0].any()


def test_the_order_of_the_clients_changes_no_bit_of_the_distances():
    x, order = torch.randn(11, 5000), np.random.default_rng(0).permutation(11)
    between = squared_distances(x)[0]
    np.testing.assert_array_equal(squared_distances(x[order])[0], between[np.ix_(order, order)])


@pytest.mark.parametrize("size", [3, 40])
def test_the_number_of_threads_changes_no_bit(size, monkeypatch):
    monkeypatch.setattr(columns, "PART_BYTES", 1 << 17)
    x, results = torch.randn(size, 300_001), []
    compare(x[:, :100_000], 1.0)
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        try:
            s, total = measure(x), weighted_sum(x, np.arange(size) / size)
            pairs = squared_distances(x[:7])[0]
        finally:
            torch.set_num_threads(1)
        results.append([s.norms, s.dots, s.reference_norm, pairs, total.numpy()])
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


def test_a_forked_child_has_threads_of_its_own():
    code = """
import os, numpy as np, torch
from fedsdg.aggregation.engines.kernels import columns, sums
torch.set_num_threads(2)
columns.PART_BYTES = 1 << 10
rows, out = columns.as_rows(torch.ones(3, 20_000)), torch.empty(20_000)
assert sums.weighted_sum(rows, np.ones(3), out)
child = os.fork()
out.zero_()
assert sums.weighted_sum(rows, np.ones(3), out) and (out == 3).all()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_an_error_in_one_part_is_raised(monkeypatch):
    monkeypatch.setattr(columns, "PART_BYTES", 1 << 9)

    def work(start, stop):
        if start:
            raise MemoryError("no room")
        return 1

    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            with pytest.raises(MemoryError, match="no room"):
                columns.over_parts(columns.as_rows(torch.zeros(2, 10_000)), 64, work)
        finally:
            torch.set_num_threads(1)


def test_a_common_direction_does_not_cancel():
    """Spread / common = 1e-4 in float32: distances keep the digits that the numbers have."""
    generator = np.random.default_rng(0)
    spread = 1e-4 * generator.normal(size=(10, 400_000))
    x = torch.tensor(3e-5 * (generator.normal(size=400_000) + spread)).float()
    y = x.double().numpy()
    expected = ((y[:, None] - y[None]) ** 2).sum(-1)
    np.testing.assert_allclose(squared_distances(x)[0], expected, rtol=1e-7)
    centred = y - y.mean(0)
    gram = measure(x, gram=True).gram
    np.testing.assert_allclose(gram, centred @ centred.T, rtol=0, atol=1e-7 * expected.max())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", STORAGES)
def test_non_finite_rows_are_never_silent(value, dtype):
    x = torch.ones(5, 2000, dtype=dtype)
    x[3, 1234] = value
    assert not np.isfinite(measure(x).norms[3])
    assert not np.isfinite(squared_distances(x)[0][3, :3]).any()
    assert not torch.isfinite(weighted_sum(x, np.full(5, 0.2))[1234])


def test_where_nothing_can_be_written_kernels_work_without_a_cache(monkeypatch):
    compile_ = compiling.numba.njit

    def njit(cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return compile_(**options)

    monkeypatch.setattr(compiling.numba, "njit", njit)
    assert compiling.compiled(lambda x: x + 1)(1) == 2


@pytest.mark.parametrize("name", ["torch", "numba"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_client_of_weight_zero_must_be_finite_too(name, value, cohort):
    updates = torch.ones(3, 50)
    updates[1, 7] = value
    context = cohort(3, samples=np.array([5, 0, 5]))
    with backend(name), pytest.raises(NonFiniteError, match="client 1: "):
        Mean()({"update": updates}, context, {})
