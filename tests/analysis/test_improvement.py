"""The probability of improvement: by hand, against scipy, and how often its interval covers it."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from fedsdg.analysis.improvement import probability_of_improvement

from .coverage import TRIALS, is_nominal, share


def test_a_worked_example_with_a_tie() -> None:
    # Task 1: 3 is above 1 and 2, 2 is above 1 and equal to 2: 2 + 1½ of four. Task 2: none of four.
    ours, theirs = np.array([[3.0, 2.0], [0.0, 1.0]]), np.array([[1.0, 2.0], [5.0, 5.0]])
    expected = (Fraction(7, 2) / 4 + 0) / 2
    assert probability_of_improvement(ours, theirs).value == float(expected)
    assert probability_of_improvement(theirs, ours).value == float(1 - expected)


def test_it_is_the_mean_of_scipys_u_over_the_pairs() -> None:
    rng = np.random.default_rng(3)
    ours, theirs = rng.integers(0, 6, size=(2, 4, 7)).astype(float)
    u = [stats.mannwhitneyu(x, y).statistic for x, y in zip(ours, theirs, strict=True)]
    expected = np.mean(u) / 49
    assert probability_of_improvement(ours, theirs).value == pytest.approx(expected)


@pytest.mark.parametrize("common", [0.0, 1.0])
@pytest.mark.parametrize(("tasks", "seeds"), [(3, 10), (6, 5)])
def test_the_interval_covers_the_normal_value_as_often_as_it_says(tasks, seeds, common) -> None:
    """X ~ N(½, 1), Y ~ N(0, 1): P(X > Y) = Φ(½/√2) for two different runs.

    ``common``: what the same seed gives to both, as a share of a half of each one's variance.
    """
    truth = float(stats.norm.cdf(0.5 / 2**0.5))
    a, b, both = np.random.default_rng(16).normal(size=(3, TRIALS, tasks, seeds))
    own, shared = (1 - common / 2) ** 0.5, (common / 2) ** 0.5
    found = (
        probability_of_improvement(0.5 + own * x + shared * z, own * y + shared * z, 0.95, 500)
        for x, y, z in zip(a, b, both, strict=True)
    )
    assert is_nominal(share(one.low <= truth <= one.high for one in found))


def test_a_seed_is_drawn_for_both_at_once() -> None:
    """Where a seed decides nearly all, drawing both alike gives nearly no spread within a pair."""
    seeds = np.array([[0.0, 10.0, 20.0, 30.0, 40.0]])
    one = probability_of_improvement(seeds + 1, seeds)
    # Of n² pairs those of one seed with itself are won, of the others the half.
    assert one.value == float(Fraction(1, 2) + Fraction(5, 2 * 25))
    assert one.low >= 0.5


def test_runs_that_all_win_have_probability_one() -> None:
    one = probability_of_improvement(np.ones((2, 5)), np.zeros((2, 5)))
    assert (one.value, one.low, one.high) == (1.0, 1.0, 1.0)


def test_scores_of_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        probability_of_improvement(np.ones((2, 5)), np.ones((2, 4)))
