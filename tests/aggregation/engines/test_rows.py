"""Rows in blocks of columns are the rows: whatever is asked of them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsdg.aggregation.engines.rows import BlockRows, TensorRows
from fedsdg.aggregation.plans import Combination, Nothing, OrderStatistics, PlannedRule
from fedsdg.aggregation.rule_table import make_rule, rules


def in_blocks(x: torch.Tensor, width: int) -> BlockRows:
    def blocks():
        for start in range(0, x.shape[1], width):
            columns = slice(start, min(start + width, x.shape[1]))
            yield columns, x[:, columns]

    return BlockRows(blocks, (x.shape[0], x.shape[1]), x.dtype)


def drawn(seed, size, d):
    return torch.tensor(np.random.default_rng(seed).normal(size=(size, d)) + 0.3)


def squared(products, unit):
    """The unit itself may be too large to be squared, where all products are 0."""
    return products * unit * unit


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 9),
    d=st.integers(0, 40),
    width=st.integers(1, 41),
    exponent=st.sampled_from([-300, -160, -25, 0, 25, 150]),
)
def test_blocks_are_the_whole(seed, size, d, width, exponent):
    x = drawn(seed, size, d) * 10.0**exponent
    whole, parts = TensorRows(x), in_blocks(x, width)
    c = np.random.default_rng(seed + 1).normal(size=size)
    scale = 10.0**exponent
    for coefficients in (None, c):
        one, two = whole.measure(coefficients), parts.measure(coefficients)
        # In units that keep the squares in range; the products may still vanish below 1e-308.
        np.testing.assert_allclose(two.norms * (two.unit / scale), one.norms * (one.unit / scale))
        np.testing.assert_allclose(
            squared(two.dots, two.unit / scale), squared(one.dots, one.unit / scale), atol=1e-12
        )
        np.testing.assert_allclose(
            two.reference_norm * (two.unit / scale), one.reference_norm * (one.unit / scale)
        )
    one, unit_one = whole.squared_distances()
    two, unit_two = parts.squared_distances()
    np.testing.assert_allclose(squared(two, unit_two / scale), squared(one, unit_one / scale))
    for step in (Combination(c), OrderStatistics((size - 1) // 2), OrderStatistics(0), Nothing()):
        torch.testing.assert_close(step.of(parts), step.of(whole))
    np.testing.assert_array_equal(parts.nonfinite_counts(), np.zeros(size))


@pytest.mark.parametrize("small", [0.0, 1e-250])
def test_blocks_of_very_different_size(small):
    """A block of zeros has no unit of its own; one that is tiny against another adds nothing."""
    x = drawn(0, 4, 30) * 1e-200
    x[:, :10] *= 0.0
    x[:, 20:] *= small
    expected = TensorRows(x[:, 10:20]).measure()
    found = in_blocks(x, 10).measure()
    np.testing.assert_allclose(found.norms * found.unit, expected.norms * expected.unit)
    assert found.norms.min() > 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows(value):
    x = drawn(0, 5, 37)
    x[3, [11, 30]] = value
    rows = in_blocks(x, 8)
    np.testing.assert_array_equal(rows.nonfinite_counts(), [0, 0, 0, 2, 0])
    np.testing.assert_array_equal(np.isfinite(rows.measure().norms), [1, 1, 1, 0, 1])
    assert not np.isfinite(rows.squared_distances()[0][3, :3]).any()
    for step in (Combination(np.full(5, 0.2)), OrderStatistics(2), OrderStatistics(1)):
        bad = ~torch.isfinite(step.of(rows))
        assert bad.nonzero().flatten().tolist() == [11, 30]


@pytest.mark.parametrize(
    "name", [name for name in rules() if isinstance(make_rule(name), PlannedRule)]
)
def test_every_rule_plans_the_same_from_blocks(name, cohort):
    rule = make_rule(name)
    x, size = drawn(7, 7, 50), 7
    context = cohort(size)
    state = rule.init(50, context.client_samples)
    uploads = dict.fromkeys(rule.reads, x.flip(0)) | {"update": x}
    expected = rule(uploads, context, state)
    rows = {upload: in_blocks(uploads[upload], 9) for upload in rule.reads}
    plan = rule.plan(rows, context, state)
    torch.testing.assert_close(plan.step.of(rows["update"]), expected.steps[0])
    assert (plan.weights is None) == (expected.weights is None)
    if plan.weights is not None:
        np.testing.assert_allclose(plan.weights, expected.weights, rtol=1e-9, atol=1e-12)
    for key, value in expected.state.items():
        torch.testing.assert_close(plan.state[key].to(value), value)
    assert plan.diagnostics.keys() == expected.diagnostics.keys()


def test_a_combination_of_one_row_is_that_row_bit_for_bit():
    x = drawn(1, 4, 1000).float()
    for rows in (TensorRows(x), in_blocks(x, 64)):
        one = Combination(np.array([0.0, 0.0, 1.0, 0.0])).of(rows)
        assert torch.equal(one, x[2])
        assert one.data_ptr() != x[2].data_ptr()
