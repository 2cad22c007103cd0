"""Intervals, paired differences, regret and Holm's correction against scipy and by hand."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedsdg.analysis.statistics import differences, holm, interval, p_beyond, regret

X = np.array([1.0, 2.0, 4.0, 4.5, 7.0])
NOISE = np.array([0, 0.1, 0, -0.1, 0])


def tidy(cell="c", **numbers):
    rows = [
        {"cell": cell, "method": method, "seed": seed, "value": value}
        for method, own in numbers.items()
        for seed, value in enumerate(own)
    ]
    return pd.DataFrame(rows).dropna()


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
def test_intervals_are_those_of_student(level):
    row = interval(tidy(a=X, b=[1.0, 2.0]), ["method"], level).set_index("method").loc["a"]
    expected = stats.t.interval(level, 4, X.mean(), stats.sem(X))
    assert (row["n"], row["mean"], row["std"]) == (5, X.mean(), pytest.approx(X.std(ddof=1)))
    assert (row["low"], row["high"]) == pytest.approx(expected)


def test_fewer_than_five_seeds_have_no_interval():
    row = interval(tidy(a=X[:4]), ["method"]).iloc[0]
    assert row["mean"] == X[:4].mean()
    assert np.isnan(row["low"])
    assert np.isnan(row["high"])


@pytest.mark.parametrize("bound", [-3, 1, 3.7, 9])
def test_p_is_that_of_the_one_sided_t_test(bound):
    expected = stats.ttest_1samp(X, bound, alternative="greater").pvalue
    assert p_beyond(X.mean(), X.std(ddof=1), 5, bound) == pytest.approx(expected)


def test_without_spread_a_mean_is_beyond_or_not():
    assert [p_beyond(2, 0, 5, bound) for bound in (1, 2, 3)] == [0, 1, 1]
    assert np.isnan(p_beyond(2, np.nan, 1, 1))


def test_differences_are_paired_by_seed():
    frame = tidy(a=X + 3, b=X + NOISE, c=[1, 2, np.nan, np.nan, np.nan])
    found = differences(frame, "a", ["cell"]).set_index("rival")
    test = stats.ttest_rel(X + 3, X + NOISE).confidence_interval(0.95)
    assert found.loc["b", ["low", "high"]].tolist() == pytest.approx([test.low, test.high])
    assert found.loc["c", "n"] == 2
    assert differences(frame, "nobody", ["cell"]).empty


def by_brute_force(numbers, oracles=()):
    """Regret from its definition, a loop over seeds."""
    methods = [name for name in numbers if name not in oracles]
    found = {}
    for name, seed in itertools.product(numbers, range(len(next(iter(numbers.values()))))):
        means = {other: np.delete(numbers[other], seed).mean() for other in methods}
        best = max(methods, key=means.__getitem__)
        found[name, seed] = numbers[best][seed] - numbers[name][seed]
    return found


def test_regret_by_brute_force():
    draws = np.random.default_rng(3).normal(size=(4, 6))
    numbers = dict(zip("abcd", draws, strict=True))
    found = regret(tidy(**numbers), {"d"}).set_index(["method", "seed"])["value"]
    assert found.to_dict() == pytest.approx(by_brute_force(numbers, {"d"}))


def test_luck_on_one_seed_is_not_rewarded():
    found = regret(tidy(a=[90, 10, 10, 10], b=[50] * 4, c=[49] * 4), ())
    assert found.groupby("method")["value"].mean()[["b", "c"]].tolist() == [0, 1]
    assert (found.loc[found["method"] == "b", "value"] == 0).all()


def test_rows_are_tied_unless_a_paired_test_parts_them():
    noise = np.array([0.1, -0.1, 0.2, -0.2, 0.0])
    found = regret(tidy(a=X, near=X + noise - 0.01, far=X + noise - 3, oracle=X + 9), {"oracle"})
    tied = found.drop_duplicates("method").set_index("method")["tied"]
    assert tied.to_dict() == {"a": True, "near": True, "far": False, "oracle": False}
    p = stats.ttest_rel(X, X + noise - 0.01, alternative="greater").pvalue
    assert p > 0.05


def test_below_five_seeds_nothing_is_tied():
    assert not regret(tidy(a=X[:4], near=X[:4] - 0.01), ())["tied"].any()


def test_methods_that_lack_a_seed_are_measured_and_never_the_best():
    found = regret(tidy(a=[1.0, 2.0], b=[5.0, np.nan]), ())
    assert found.set_index(["method", "seed"])["value"].to_dict() == {
        ("a", 0): 0,
        ("a", 1): 0,
        ("b", 0): -4,
    }
    assert regret(tidy(a=[1.0, np.nan], b=[np.nan, 1.0]), ()).empty


def test_a_single_seed_chooses_for_itself():
    found = regret(tidy(a=[1.0], b=[3.0]), ()).set_index("method")["value"]
    assert found.to_dict() == {"a": 2, "b": 0}


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == pytest.approx([1, 1])
    assert holm([]).tolist() == []
