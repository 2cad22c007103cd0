"""The interquartile mean: by hand, against scipy, and how often its interval covers the truth."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from fedsdg.analysis import interquartile
from fedsdg.analysis.interquartile import interquartile_mean, middle_mean

from .coverage import TRIALS, is_nominal, share


def test_a_worked_example() -> None:
    # Ten scores: ⌊10/4⌋ = 2 fall away on each side, six are left: 3 + 4 + 5 + 6 + 7 + 8 = 33.
    scores = np.array([[1.0, 9.0, 3.0, 7.0, 5.0], [100.0, 2.0, 8.0, 4.0, 6.0]])
    assert interquartile_mean(scores).value == float(Fraction(3 + 4 + 5 + 6 + 7 + 8, 6))


def test_two_tasks_of_two_seeds_drawn_in_all_ways() -> None:
    """0 and 4 in one task, 8 and 12 in the other: a drawing is one of 16, by hand.

    Of four scores one falls away on each side: with a zeros and b eights drawn (0 to 2 each, with
    chances ¼, ½, ¼) the mean is that of the upper of the first task and the lower of the second.
    """
    upper = {0: Fraction(1, 4), 4: Fraction(3, 4)}
    lower = {8: Fraction(3, 4), 12: Fraction(1, 4)}
    chances = {}
    for a, p in upper.items():
        for b, q in lower.items():
            chances[Fraction(a + b, 2)] = chances.get(Fraction(a + b, 2), 0) + p * q
    assert chances == {4: Fraction(3, 16), 6: Fraction(10, 16), 8: Fraction(3, 16)}
    scores = np.array([[0.0, 4.0], [8.0, 12.0]])
    drawn = interquartile._drawn_means(scores, interquartile.drawn_counts("x", 2, 2, 8000))
    for mean, chance in chances.items():
        # Three standard errors of a share of 8000.
        error = 3 * float(chance * (1 - chance) / 8000) ** 0.5
        assert (drawn == float(mean)).mean() == pytest.approx(float(chance), abs=error)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 30, 101])
def test_it_is_the_trimmed_mean_of_scipy(size) -> None:
    values = np.random.default_rng(size).normal(size=size)
    assert float(middle_mean(values)) == pytest.approx(stats.trim_mean(values, 0.25))


def test_each_drawing_is_the_trimmed_mean_of_the_scores_drawn() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(3, 5))
    counts = interquartile.drawn_counts("x", 3, 5, 50)
    drawn = interquartile._drawn_means(scores, counts)
    for mean, count in zip(drawn, counts, strict=True):
        assert mean == pytest.approx(stats.trim_mean(np.repeat(scores, count.ravel()), 0.25))


@pytest.mark.parametrize(("tasks", "seeds"), [(3, 10), (6, 5)])
def test_the_interval_covers_the_middle_of_normal_scores_as_often_as_it_says(tasks, seeds) -> None:
    """Of scores around the same middle the interquartile mean of the population is that middle."""
    records = np.random.default_rng(15).normal(0.7, 0.1, size=(TRIALS, tasks, seeds))
    found = (interquartile_mean(scores, repetitions=500) for scores in records)
    assert is_nominal(share(one.low <= 0.7 <= one.high for one in found))


def test_the_interval_follows_the_confidence_and_the_same_scores_give_the_same() -> None:
    scores = np.random.default_rng(1).normal(size=(3, 6))
    wide, narrow = (interquartile_mean(scores, confidence) for confidence in (0.95, 0.5))
    assert wide.low < narrow.low < wide.value < narrow.high < wide.high
    assert interquartile_mean(scores) == wide
    assert (wide.tasks, wide.seeds) == (3, 6)


def test_one_seed_has_a_mean_and_no_interval() -> None:
    one = interquartile_mean([[0.25], [0.75]])
    assert (one.value, one.low, one.high) == (0.5, None, None)
