"""The statistics against SciPy's own tests and against brute force."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsdg.analysis.statistics import holm, mean_interval, paired_difference, worst_decile


@pytest.mark.parametrize("n", [2, 3, 5, 17])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_interval_is_student_t(n: int, confidence: float) -> None:
    x = np.random.default_rng(n).normal(0.8, 0.05, n)
    found = mean_interval(x, confidence)
    low, high = stats.t.interval(confidence, n - 1, loc=x.mean(), scale=stats.sem(x))
    assert found.n == n
    assert found.mean == pytest.approx(x.mean())
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert found.half_width == pytest.approx((high - low) / 2)
    assert found.std == pytest.approx(stats.tstd(x))


def test_interval_agrees_with_the_one_sample_test() -> None:
    """The end of a 95 % interval is the value that the two-sided t-test rejects at p = 0.05."""
    x = np.array([0.71, 0.74, 0.69, 0.75, 0.70])
    interval = mean_interval(x)
    assert interval.low is not None
    assert stats.ttest_1samp(x, interval.low).pvalue == pytest.approx(0.05)


def test_one_seed_has_a_mean_and_no_interval() -> None:
    interval = mean_interval([0.5])
    assert (interval.n, interval.mean) == (1, 0.5)
    assert interval.std is interval.half_width is interval.low is interval.high is None


@pytest.mark.parametrize("values", [[], [0.1, math.nan], [math.inf], [[0.1, 0.2]]])
def test_values_that_allow_no_mean_are_refused(values: list) -> None:
    with pytest.raises(ValueError):
        mean_interval(values)


def test_paired_difference_is_the_paired_t_test_over_common_seeds() -> None:
    rng = np.random.default_rng(0)
    ours = dict(enumerate(rng.normal(0.80, 0.05, 7)))
    theirs = {seed: value - 0.02 + rng.normal(0, 0.01) for seed, value in ours.items()}
    ours[7], theirs[9] = 0.1, 0.9  # seeds of one side alone do not count
    found = paired_difference(ours, theirs)
    a, b = (np.array([side[seed] for seed in range(7)]) for side in (ours, theirs))
    expected = stats.ttest_rel(a, b)
    interval = expected.confidence_interval(0.95)
    assert found is not None
    assert found.p == pytest.approx(expected.pvalue)
    assert found.interval.n == 7
    assert found.interval.low == pytest.approx(interval.low)
    assert found.interval.high == pytest.approx(interval.high)
    assert found.subject_mean - found.rival_mean == pytest.approx(found.interval.mean)


def test_paired_difference_at_its_limits() -> None:
    assert paired_difference({0: 0.5}, {1: 0.5}) is None
    one = paired_difference({0: 0.75}, {0: 0.5})
    assert one is not None and one.p is None and one.interval.low is None
    same = paired_difference({0: 0.5, 1: 0.25}, {0: 0.5, 1: 0.25})
    assert same is not None and same.p == 1.0
    shifted = paired_difference({0: 0.5, 1: 0.25}, {0: 0.25, 1: 0.0})
    assert shifted is not None and shifted.p == 0.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=23))
def test_worst_decile_is_the_lowest_mean_of_that_many_clients(values: list[float]) -> None:
    count = math.ceil(len(values) / 10)
    brute = min(math.fsum(chosen) / count for chosen in combinations(values, count))
    assert worst_decile(values) == pytest.approx(brute, abs=1e-12)


@pytest.mark.parametrize(("clients", "count"), [(1, 1), (10, 1), (11, 2), (20, 2), (21, 3)])
def test_worst_decile_rounds_the_number_of_clients_up(clients: int, count: int) -> None:
    values = np.arange(clients, dtype=float)
    assert worst_decile(values[::-1]) == np.arange(count).mean()


def test_worst_decile_refuses_clients_without_a_value() -> None:
    with pytest.raises(ValueError, match="finite"):
        worst_decile([0.1, math.nan])


def test_holm_by_hand() -> None:
    # Sorted: 0.005·4, 0.01·3, 0.03·2, then 0.04·1 lifted to its predecessor.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.01, None, 0.9]) == [0.02, None, 0.9]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_rejects_what_the_step_down_procedure_rejects(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    level, rejected = 0.05, set()
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if (len(p_values) - rank) * p_values[index] > level:
            break
        rejected.add(index)
    assert {i for i, p in enumerate(adjusted) if p is not None and p <= level} == rejected
