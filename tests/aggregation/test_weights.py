"""The cap and the summary of weights."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsdg.aggregation.weights import capped, weight_summary


@settings(max_examples=200, deadline=None)
@given(
    raw=st.lists(st.floats(0, 1), min_size=1, max_size=12).filter(lambda r: sum(r) > 1e-3),
    position=st.floats(0, 1),
)
def test_capped(raw, position):
    weights = np.array(raw) / sum(raw)
    size = len(weights)
    cap = 1 / size + position * (1 - 1 / size)
    result = capped(weights, cap)
    assert result.sum() == pytest.approx(1, abs=1e-12)
    assert result.max() <= cap + 1e-12
    assert (result >= 0).all()
    # In proportion: those below the cap keep their ratios, and none of them shrinks.
    free = result < cap - 1e-9
    if weights[free].sum() > 1e-12:
        factor = result[free].sum() / weights[free].sum()
        assert factor >= 1 - 1e-9
        np.testing.assert_allclose(result[free], weights[free] * factor, atol=1e-12)
        # Nobody at the cap would be below it with the factor that the others got.
        np.testing.assert_array_less(cap, weights[~free] * factor + 1e-9)


def test_the_excess_is_spread_again_until_none_exceeds():
    # .4 of excess in the ratio 3 : 1 lifts .3 to .6 > .5; the rest goes to the last.
    np.testing.assert_allclose(capped(np.array([0.6, 0.3, 0.1]), 0.4), [0.4, 0.4, 0.2])
    np.testing.assert_allclose(capped(np.array([0.5, 0.3, 0.2]), 0.45), [0.45, 0.33, 0.22])


def test_excess_with_only_zeros_below_is_spread_evenly():
    np.testing.assert_allclose(capped(np.array([1.0, 0, 0]), 0.5), [0.5, 0.25, 0.25])
    np.testing.assert_allclose(capped(np.array([1.0, 0, 0]), 1 / 3), [1 / 3] * 3)


def test_weights_below_the_cap_are_untouched():
    weights = np.array([0.2, 0.3, 0.5])
    np.testing.assert_array_equal(capped(weights, 0.5), weights)


@pytest.mark.parametrize("cap", [0.2, 0.0, -1.0, float("nan"), 1.5])
def test_impossible_caps_are_refused(cap):
    with pytest.raises(ValueError, match=r"max_weight=.* (below 1/3|at most 1)"):
        capped(np.full(3, 1 / 3), cap)


def test_summary_of_uniform_and_of_one_hot():
    uniform = weight_summary(np.full(4, 0.25))
    assert uniform == {
        "mean": 0.25,
        "std": 0.0,
        "min": 0.25,
        "max": 0.25,
        "zeros": 0.0,
        "entropy": pytest.approx(math.log(4)),
    }
    one_hot = weight_summary(np.array([0.0, 1.0, 0.0]))
    assert one_hot["zeros"] == 2
    assert one_hot["entropy"] == 0
    assert one_hot["std"] == pytest.approx(math.sqrt(2) / 3)
    assert (one_hot["min"], one_hot["max"]) == (0, 1)


def test_summary_counts_tiny_weights_as_zero():
    assert weight_summary(np.array([9e-7, 2e-6, 1 - 2.9e-6]))["zeros"] == 1
    two = weight_summary(np.array([0.25, 0.75]))
    assert two["entropy"] == pytest.approx(0.25 * math.log(4) + 0.75 * math.log(4 / 3))
    with pytest.raises(ValueError, match="at least one client"):
        weight_summary(np.array([]))
