"""What seeds take to a target: order statistics with seeds that never get there, by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from fedsdg.analysis.reaching import reached, seeds_to_target
from fedsdg.analysis.summary import Summary

from .views.test_costs import run

NEVER = float("nan")


def test_ten_seeds_of_which_three_never_get_there() -> None:
    one = reached([50, 10, NEVER, 30, 20, 40, NEVER, 60, 70, NEVER])
    assert (one.seeds, one.reached, one.median) == (10, 7, 50)
    # 1 − 2 (1 + 10)/1024 = 97.9 % between the second and the second last, which never got there.
    assert (one.low, one.high) == (20, math.inf)


def test_the_median_is_beyond_what_was_tried_where_most_never_get_there() -> None:
    assert reached([5, NEVER, NEVER]).median == math.inf
    assert reached([5, 7, NEVER, NEVER]).median == 7  # half of them are there


def test_five_seeds_allow_no_interval_and_six_their_range() -> None:
    # 1 − 2/2⁵ = 93.75 %, 1 − 2/2⁶ = 96.875 %.
    assert reached([1, 2, 3, 4, 5]).low is None
    assert (reached([1, 2, 3, 4, 5, 6]).low, reached([1, 2, 3, 4, 5, 6]).high) == (1, 6)
    assert reached([1, 2, 3, 4, 5], confidence=0.9).low == 1


@pytest.mark.parametrize("seeds", range(6, 41))
def test_the_interval_has_at_least_its_confidence_and_no_narrower_one_has(seeds) -> None:
    one = reached(np.arange(1, seeds + 1))
    k = int(one.low)
    assert one.high == seeds + 1 - k
    covered = [1 - 2 * stats.binom.cdf(end - 1, seeds, 0.5) for end in (k, k + 1)]
    assert covered[0] >= 0.95 > covered[1]


@pytest.mark.parametrize("tried", [1.0, 0.5])
def test_it_covers_the_median_whatever_is_censored(tried) -> None:
    """Exponential times with median ln 2 = 0.693, ten seeds, stopped after or before it.

    The coverage is exactly 1 − 22/1024 = 97.9 %, where the median is beyond what was tried because
    then the upper end is too; 4000 simulations have a standard error of 0.23 points.
    """
    times = np.random.default_rng(4).exponential(size=(4000, 10))
    times[times > tried] = NEVER
    found = [reached(row) for row in times]
    truth = math.log(2) if math.log(2) <= tried else math.inf
    covered = np.mean([one.low <= truth <= one.high for one in found])
    if truth < math.inf:
        assert covered == pytest.approx(1 - 22 / 1024, abs=3 * 0.0023)
    else:
        assert covered >= 1 - 22 / 1024 - 3 * 0.0023


def test_no_seed_has_no_median() -> None:
    with pytest.raises(ValueError, match="at least one seed"):
        reached([])


def test_each_seed_reaches_the_target_by_itself(summary_of) -> None:
    """The yardstick ends at 0.8, so the target is 0.72; evaluated are rounds 2, 4, 6, 8."""
    folder = summary_of(
        [
            # Smoothed: 0.2, 0.35, 0.5, 0.7 and 0.4, 0.55, 0.633, 0.767.
            run("fedavg-uniform", 0, [0.2, 0.5, 0.8, 0.8]),
            run("fedavg-uniform", 1, [0.4, 0.7, 0.8, 0.8]),
            run("ditto", 0, [0.9, 0.9, 0.9, 0.9]),
        ]
    )
    rows = seeds_to_target(Summary(folder), 0.9).set_index(["method", "seed"])
    assert rows["target"].tolist() == pytest.approx([0.72] * 3)
    assert np.isnan(rows.loc[("fedavg-uniform", 0), "round"])
    assert rows.loc[("fedavg-uniform", 1), ["round", "bytes"]].tolist() == [8, 24e6]
    assert rows.loc[("ditto", 0), ["round", "bytes"]].tolist() == [2, 6e6]
    assert rows["last_round"].tolist() == [8] * 3
    assert rows["last_bytes"].tolist() == [24e6] * 3


def test_without_the_yardstick_there_is_no_target(summary_of) -> None:
    assert seeds_to_target(Summary(summary_of([run("krum", 0, [0.1, 0.2])])), 0.9).empty
