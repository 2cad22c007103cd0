"""The stratified bootstrap: fixed draws, and ends that are wider than plain percentiles."""

import math

import numpy as np
import pytest
from scipy import stats

from fedsdg.analysis.bootstrap import bootstrap_interval, drawn_counts, task_scores


def test_each_task_is_drawn_by_itself_and_as_often_as_it_has_seeds() -> None:
    counts = drawn_counts("a", tasks=3, seeds=5, repetitions=4000)
    assert counts.shape == (4000, 3, 5)
    assert (counts.sum(axis=2) == 5).all()
    # A seed is drawn Bin(5, 1/5) times: mean 1, variance 4/5; of 60 000 the error is below 0.02.
    assert counts.mean() == 1
    assert counts.var() == pytest.approx(0.8, abs=0.02)
    # Nor do tasks follow one another.
    assert abs(np.corrcoef(counts[:, 0, 0], counts[:, 1, 0])[0, 1]) < 0.06


def test_a_stream_gives_the_same_draws_and_another_name_others() -> None:
    once, again = (drawn_counts("a", 2, 4, 50) for _ in range(2))
    assert (once == again).all()
    assert (once != drawn_counts("b", 2, 4, 50)).any()


@pytest.mark.parametrize("seeds", [2, 5, 10])
def test_the_ends_are_expanded_percentiles(seeds) -> None:
    """Statistics at the quantiles of a normal: the ends are ±z, widened by √(n/(n−1))."""
    statistics = stats.norm.ppf((np.arange(100_000) + 0.5) / 100_000)
    low, high = bootstrap_interval(statistics, seeds)
    expected = 1.959964 * math.sqrt(seeds / (seeds - 1))
    assert (low, high) == (pytest.approx(-expected, abs=2e-3), pytest.approx(expected, abs=2e-3))


def test_one_seed_has_no_interval() -> None:
    assert bootstrap_interval(np.zeros(10), 1) is None


@pytest.mark.parametrize("scores", [np.zeros(3), np.zeros((0, 2)), [[0.5, float("nan")]]])
def test_scores_are_tasks_by_seeds_and_finite(scores) -> None:
    with pytest.raises(ValueError, match="scores"):
        task_scores(scores)
