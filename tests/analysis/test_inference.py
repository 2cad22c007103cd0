"""The statistics against SciPy's own tests and against brute force."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsdg.analysis.inference import (
    benjamini_hochberg,
    correlation_interval,
    crossed_interval,
    holm,
    mean_interval,
    paired_difference,
    smallest_visible,
)


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


@pytest.mark.parametrize("values", [[], [0.1, math.nan], [math.inf], [[0.1, 0.2]]])
def test_values_that_allow_no_mean_are_refused(values: list) -> None:
    with pytest.raises(ValueError):
        mean_interval(values)
    with pytest.raises(ValueError, match="between -1 and 1"):
        correlation_interval([0.5, 1.1])


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


def test_intervals_at_their_limits() -> None:
    interval = mean_interval([0.5])
    assert (interval.n, interval.mean) == (1, 0.5)
    assert interval.std is interval.half_width is interval.low is interval.high is None
    assert paired_difference({0: 0.5}, {1: 0.5}) is None
    for ours, theirs, p in (
        ({0: 0.75}, {0: 0.5}, None),
        ({0: 0.5, 1: 0.25}, {0: 0.5, 1: 0.25}, 1.0),
        ({0: 0.5, 1: 0.25}, {0: 0.25, 1: 0.0}, 0.0),
    ):
        found = paired_difference(ours, theirs)
        assert found is not None and found.p == p


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


@given(st.lists(st.floats(0, 0.4), min_size=1, max_size=6))
def test_holm_is_the_closed_test_of_bonferroni(p_values: list[float]) -> None:
    """Brute force over all intersections: H_i falls at the largest p of those that hold it."""
    places = range(len(p_values))
    for i in places:
        intersections = [
            chosen
            for size in range(1, len(p_values) + 1)
            for chosen in combinations(places, size)
            if i in chosen
        ]
        closed = max(min(1.0, len(c) * min(p_values[j] for j in c)) for c in intersections)
        assert holm(p_values)[i] == pytest.approx(closed)


def test_the_smallest_visible_difference_is_seen_four_times_in_five() -> None:
    """Simulated: with the spread known, a shift of that size is significant with 80 % power."""
    rng = np.random.default_rng(1)
    n, spread, tries = 10, 0.02, 20_000
    # An interval whose s is the true spread.
    unit = rng.normal(size=n)
    unit = (unit - unit.mean()) / unit.std(ddof=1)
    shift = smallest_visible(mean_interval(spread * unit))
    assert shift is not None
    x = rng.normal(shift, spread, (tries, n))
    seen = (stats.ttest_1samp(x, 0.0, axis=1).pvalue < 0.05).mean()
    assert seen == pytest.approx(0.8, abs=0.03)
    assert smallest_visible(mean_interval([0.5])) is None


def test_correlations_are_averaged_as_fishers_z() -> None:
    rho = [0.2, 0.7, 0.95, -0.1, 0.5]
    found = correlation_interval(rho)
    z = np.arctanh(rho)
    low, high = stats.t.interval(0.95, 4, z.mean(), stats.sem(z))
    assert found.mean == pytest.approx(np.tanh(z.mean()))
    assert (found.low, found.high) == (pytest.approx(np.tanh(low)), pytest.approx(np.tanh(high)))
    assert (found.n, found.std, found.half_width) == (5, None, None)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=9))
def test_the_interval_of_correlations_stays_within_one(rho: list[float]) -> None:
    found = correlation_interval(rho)
    mirrored = correlation_interval([-r for r in rho])
    assert found.mean == pytest.approx(-mirrored.mean)
    for end in (found.mean, found.low, found.high):
        assert end is None or -1 <= end <= 1
    assert (found.low is None) == (len(rho) == 1)


def test_benjamini_and_hochberg_by_hand() -> None:
    # Sorted: 0.005·4/1, 0.01·4/2, 0.03·4/3, 0.04·4/4, each lowered to its successor.
    given = [0.01, None, 0.04, 0.03, 0.005]
    assert benjamini_hochberg(given) == pytest.approx([0.02, None, 0.04, 0.04, 0.02])
    assert benjamini_hochberg([None]) == [None]


def test_calls_by_benjamini_and_hochberg_are_rarely_false() -> None:
    """Of calls among 20 tests, 15 of them of nothing, the expected share of errors is below 5 %."""
    rng = np.random.default_rng(5)
    shares = []
    for _ in range(400):
        z = rng.normal(size=20) + np.repeat([3.0, 0.0], [5, 15])
        p = benjamini_hochberg((2 * stats.norm.sf(np.abs(z))).tolist())
        calls = [i for i, one in enumerate(p) if one is not None and one < 0.05]
        shares.append(sum(i >= 5 for i in calls) / max(len(calls), 1))
    assert np.mean(shares) < 0.055


def crossed(rng, seeds=5, images=60, spread_of_seeds=0.02, spread_of_images=0.25):
    """Shares of clients that are right, by seed and image, whose true mean is 0.7."""
    by_seed = rng.normal(0, spread_of_seeds, (seeds, 1))
    by_image = rng.normal(0, spread_of_images, (1, images))
    return 0.7 + by_seed + by_image + rng.normal(0, 0.1, (seeds, images))


def test_a_crossed_interval_covers_the_mean_of_other_seeds_and_images() -> None:
    """Nineteen times in twenty; the interval over seeds alone is far too narrow."""
    rng = np.random.default_rng(7)
    covered, alone = [], []
    for _ in range(600):
        x = crossed(rng)
        for hits, one in (
            (covered, crossed_interval(x.mean(axis=1), x)),
            (alone, mean_interval(x.mean(axis=1))),
        ):
            hits.append(one.low < 0.7 < one.high)
    assert np.mean(covered) == pytest.approx(0.95, abs=0.03)
    assert np.mean(alone) < 0.7


def test_images_that_are_equal_or_differ_by_chance_leave_the_interval_over_seeds() -> None:
    """By chance: each is right as often as any other, though each seed errs on its own."""
    levels = np.array([0.4, 0.6, 0.5, 0.4, 0.6])
    own = 0.1 * np.kron(np.array([1, -1, 0, 1, -1])[:, None], np.array([1.0, -1.0] * 10))
    plain = mean_interval(levels)
    for differences in (0 * own, own - own.mean(axis=0)):
        one = crossed_interval(levels, levels[:, None] + differences)
        assert (one.low, one.high) == (pytest.approx(plain.low), pytest.approx(plain.high))
    with pytest.raises(ValueError, match="5 levels need finite images"):
        crossed_interval(levels, own[:4])


def test_the_part_of_the_images_in_a_crossed_interval_is_their_variance() -> None:
    """On average σ²/I, with σ that of the images; the noise of single answers adds nothing."""
    rng = np.random.default_rng(11)
    parts = []
    for _ in range(800):
        x = crossed(rng, images=40) + rng.normal(0, 0.4, (5, 40))
        one, plain = crossed_interval(x.mean(axis=1), x), mean_interval(x.mean(axis=1))
        parts.append(one.error**2 - plain.error**2)
    assert np.mean(parts) == pytest.approx(0.25**2 / 40, rel=0.05)
