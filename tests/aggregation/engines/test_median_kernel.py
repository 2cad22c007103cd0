"""The comparator networks by the 0-1 principle, and the medians against numpy, to the last bit."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsdg.aggregation.engines.backends import backend
from fedsdg.aggregation.engines.kernels import columns
from fedsdg.aggregation.engines.kernels.networks import selection_network, sorting_network
from fedsdg.aggregation.engines.order_statistics import trimmed_mean
from fedsdg.aggregation.rules.median import CoordinateMedian
from fedsdg.aggregation.uploads import NonFiniteError


@pytest.fixture(autouse=True)
def _kernels():
    with backend("numba"):
        yield


def through(network, table):
    """The rows of the table after the comparators."""
    table = table.copy()
    for i, j in network:
        table[i], table[j] = np.minimum(table[i], table[j]), np.maximum(table[i], table[j])
    return table


@pytest.mark.parametrize("size", range(1, 15))
def test_networks_sort_all_zeros_and_ones(size):
    """And so, by the 0-1 principle, all numbers; what is pruned brings the same set inside."""
    table = np.array(list(itertools.product([0, 1], repeat=size)), dtype=np.int8).T
    ordered = np.sort(table, axis=0)
    full = sorting_network(size)
    np.testing.assert_array_equal(through(full, table), ordered)
    for trim in range((size + 1) // 2):
        pruned = selection_network(size, trim)
        inside = slice(trim, size - trim)
        # Sums of zeros and ones: of every threshold, so the sets are equal.
        np.testing.assert_array_equal(
            through(pruned, table)[inside].sum(axis=0), ordered[inside].sum(axis=0)
        )
        assert len(pruned) <= len(full)
    assert len(selection_network(size, 0)) == 0


def test_known_numbers_of_comparators():
    """Batcher's merge exchange (Knuth 5.3.4, table 1)."""
    known = {2: 1, 3: 3, 4: 5, 5: 9, 6: 12, 7: 16, 8: 19, 16: 63}
    assert {size: len(sorting_network(size)) for size in known} == known


@settings(max_examples=80, deadline=None)
@given(
    size=st.integers(1, 40),
    d=st.one_of(st.integers(1, 70), st.integers(900, 3000)),
    dtype=st.sampled_from([np.float32, np.float64]),
    exponent=st.integers(-37, 37),
    ties=st.booleans(),
    apart=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_equal_to_numpy(cohort, size, d, dtype, exponent, ties, apart, seed):
    x = np.random.default_rng(seed).normal(size=(size, d)) * 10.0**exponent
    x = (np.round(x / 10.0**exponent) if ties else x).astype(dtype)
    rows = torch.tensor(x)
    if apart:
        rows = torch.cat([rows, torch.full((size, 3), torch.nan, dtype=rows.dtype)], 1)[:, :d]
    aggregate = CoordinateMedian()({"update": rows}, cohort(size), {})
    np.testing.assert_array_equal(aggregate.steps[0].numpy(), np.median(x, axis=0))
    assert aggregate.weights is None


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 70),
    share=st.floats(0, 1),
    d=st.one_of(st.integers(1, 70), st.integers(900, 3000)),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    ties=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_trimmed_means(size, share, d, dtype, ties, seed):
    x = np.random.default_rng(seed).normal(size=(size, d))
    rows = torch.tensor(np.round(x) if ties else x).to(dtype)
    trim = int(share * ((size - 1) // 2))
    kept = np.sort(rows.double().numpy(), axis=0)[trim : size - trim]
    result, info = trimmed_mean(rows, trim), torch.finfo(dtype)
    assert result.dtype == dtype
    np.testing.assert_allclose(
        result.double().numpy(),
        kept.mean(axis=0),
        rtol=0.51 * info.eps,
        atol=1e-15 * np.abs(kept).max() + 0.51 * info.eps * info.tiny,
    )


def test_of_equal_rows_the_trimmed_mean_is_that_row():
    row = torch.randn(500)
    for size in (1, 3, 5, 10):
        for trim in range((size + 1) // 2):
            assert torch.equal(trimmed_mean(row.expand(size, -1), trim), row)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_columns_that_are_not_finite_are_nan(value):
    x = torch.randn(6, 3000)
    x[3, 2345] = value
    for trim in (0, 1, 2):
        result = trimmed_mean(x, trim)
        assert torch.isnan(result).nonzero().tolist() == [[2345]]


@pytest.mark.parametrize("size", [99, 100, 257, 1000])
def test_many_clients(size, cohort):
    x = np.random.default_rng(size).normal(size=(size, 333)).astype(np.float32)
    step = CoordinateMedian()({"update": torch.tensor(x)}, cohort(size), {}).steps[0]
    np.testing.assert_array_equal(step.numpy(), np.median(x, axis=0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_large_values_do_not_overflow(dtype, cohort):
    largest = torch.full((2, 5), torch.finfo(dtype).max, dtype=dtype)
    assert torch.equal(CoordinateMedian()({"update": largest}, cohort(2), {}).steps, largest[:1])
    small = torch.full((2, 5), torch.finfo(dtype).tiny / 8, dtype=dtype)
    assert torch.equal(CoordinateMedian()({"update": small}, cohort(2), {}).steps, small[:1])


def test_all_parts_are_filled(cohort, monkeypatch):
    monkeypatch.setattr(columns, "PART_BYTES", 1 << 14)
    x = np.random.default_rng(0).normal(size=(6, 20_001)).astype(np.float32)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            step = CoordinateMedian()({"update": torch.tensor(x)}, cohort(6), {}).steps[0]
        finally:
            torch.set_num_threads(1)
        np.testing.assert_array_equal(step.numpy(), np.median(x, axis=0))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_client_that_is_not_finite_is_named(value, cohort):
    """Even where the median itself would be finite."""
    x = torch.randn(5, 3000)
    x[3, 2345] = value
    with pytest.raises(NonFiniteError, match="client 3: upload 'update' has 1 non-finite values"):
        CoordinateMedian()({"update": x}, cohort(5), {})
