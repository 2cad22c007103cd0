"""Verdicts from closed forms, and what a handful of seeds could see from drawn ones."""

import math

import numpy as np
import pytest
from scipy import stats

from fedsdg.analysis.inference import mean_interval
from fedsdg.analysis.judge import REFUTED, SUPPORTED, UNDECIDED, Threshold, every, judge

#: Mean 3, s = √2.5, t_{.975, 4} = 2.7764: the interval is 3 ± 1.9632.
FIVE = [1.0, 2.0, 3.0, 4.0, 5.0]
HALF = 2.7764451052 * math.sqrt(2.5 / 5)


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ({"above": 1.03}, SUPPORTED),
        ({"above": 1.04}, UNDECIDED),
        ({"above": 4.95}, UNDECIDED),
        ({"above": 4.97}, REFUTED),
        ({"below": 4.97}, SUPPORTED),
        ({"below": 4.95}, UNDECIDED),
        ({"below": 1.03}, REFUTED),
        ({"between": [1.03, 4.97]}, SUPPORTED),
        ({"between": [1.04, 4.97]}, UNDECIDED),
        ({"between": [4.97, 9]}, REFUTED),
        ({"between": [-9, 1.03]}, REFUTED),
        ({"equal": 3, "within": 1.97}, SUPPORTED),
        ({"equal": 3, "within": 1.96}, UNDECIDED),
    ],
)
def test_the_whole_interval_decides(given, verdict):
    judged = judge(FIVE, Threshold.read(given, "here"))
    assert judged.verdict == verdict
    assert (judged.n, judged.effect) == (5, 3.0)
    assert judged.low == pytest.approx(3 - HALF)
    assert judged.high == pytest.approx(3 + HALF)


@pytest.mark.parametrize("margin", [0.002, 0.01, 0.5])
def test_inside_a_range_is_two_one_sided_tests(margin):
    x = np.random.default_rng(0).normal(0.004, 0.008, 10)
    above = stats.ttest_1samp(x, -margin, alternative="greater").pvalue
    below = stats.ttest_1samp(x, margin, alternative="less").pvalue
    support = judge(x.tolist(), Threshold(-margin, margin)).support
    assert support == pytest.approx(max(above, below))


def test_four_seeds_decide_nothing_however_alike():
    judged = judge([7.0, 7.001, 7.0, 7.001], Threshold(0.0, None))
    assert judged.verdict == UNDECIDED
    assert (judged.n, judged.low, judged.high, judged.visible) == (4, None, None, None)
    assert judged.effect == pytest.approx(7.0005)


def test_equal_values_on_the_boundary_decide_nothing():
    for threshold in (Threshold(0.0, None), Threshold(None, 0.0)):
        assert judge([0.0] * 5, threshold).verdict == UNDECIDED


def test_what_is_counted_is_decided_by_one_seed():
    exactly = Threshold.read({"equal": 1, "within": 0}, "here")
    assert judge([1.0], exactly, exact=True).verdict == SUPPORTED
    assert judge([1.0, 1.01], exactly, exact=True).verdict == UNDECIDED
    assert judge([1.01, 1.02], exactly, exact=True).verdict == REFUTED
    assert judge([9.0], Threshold(None, 10.0), exact=True).verdict == SUPPORTED


def test_intervals_of_shares_are_cut_where_shares_end():
    values = [100.0, 100.0, 100.0, 100.0, 90.0]
    uncut = mean_interval(values)
    judged = judge(values, Threshold(50.0, None), bounds=(0.0, 100.0))
    assert uncut.high is not None and uncut.high > 100
    assert (judged.low, judged.high) == (pytest.approx(uncut.low), 100.0)
    # What is cut is shown, not judged: beyond the end there is still doubt of the mean.
    assert judge(values, Threshold(None, 101.0), bounds=(0.0, 100.0)).verdict == UNDECIDED


def test_correlations_are_judged_as_fishers_z():
    values = [0.9, 0.8, 0.95, 0.7, 0.85]
    judged = judge(values, Threshold(0.5, None), correlation=True)
    z = mean_interval(np.arctanh(values))
    assert judged.effect == pytest.approx(math.tanh(z.mean))
    assert judged.low == pytest.approx(math.tanh(float(z.low or 0)))
    assert judged.high == pytest.approx(math.tanh(float(z.high or 0)))
    assert judged.high is not None and judged.high < 1
    assert judged.verdict == SUPPORTED
    assert judge([1.0] * 5, Threshold(0.5, None), correlation=True).verdict == SUPPORTED


@pytest.mark.parametrize(
    "given", [None, 3, {}, {"above": "a"}, {"above": 1, "below": 2}, {"between": [3, 1]}]
)
def test_a_threshold_of_another_form_is_refused(given):
    with pytest.raises(ValueError, match="claim x: the threshold is .*write"):
        Threshold.read(given, "claim x: the threshold")


def test_one_of_few_seeds_leaves_all_of_several_undecided():
    """Above both, but the worse of them has only four seeds."""
    threshold = Threshold(0.0, None)
    near, far = judge(FIVE, threshold), judge([9.0, 9.1, 9.0, 9.1], threshold)
    assert near.verdict == SUPPORTED and near.effect < far.effect
    both = every([near, far], near)
    assert (both.verdict, both.n, both.effect) == (UNDECIDED, 4, near.effect)
    assert both.low is both.high is both.p is None
    assert every([near, near], near).verdict == SUPPORTED


def test_the_weakest_of_several_supports_and_the_strongest_refutes_all():
    near, far = judge(FIVE, Threshold(1.0, None)), judge(FIVE, Threshold(0.0, None))
    assert far.support < near.support == every([far, near], near).support
    low, lower = judge(FIVE, Threshold(5.0, None)), judge(FIVE, Threshold(6.0, None))
    assert lower.against < low.against
    assert every([low, lower], lower).against == pytest.approx(2 * lower.against)


@pytest.mark.parametrize(("bound", "times", "verdict"), [(1.0, 1, SUPPORTED), (6.0, 2, REFUTED)])
def test_that_all_hold_costs_nothing_and_that_one_does_not_costs_its_choice(bound, times, verdict):
    """Of two alike the p of one stands, or twice it where a pick could have decided."""
    alone = judge(FIVE, Threshold(bound, None))
    both = every([alone, alone], alone)
    assert both.p == pytest.approx(times * 2 * min(alone.support, alone.against))
    assert (alone.verdict, both.verdict) == (verdict, verdict)
    opposite = judge(FIVE, Threshold(None, bound))
    assert (alone.denied.support, alone.denied.against) == (opposite.support, opposite.against)
    assert alone.denied.verdict == opposite.verdict
