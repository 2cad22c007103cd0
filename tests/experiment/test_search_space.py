"""What a search tries: even, repeatable, the same for everybody, and summed up exactly."""

import itertools
import math
import warnings

import numpy as np
import pytest

from fedsdg.experiment.search_space import Choices, Interval, expected_best, parse_axis, points
from fedsdg.parts import Declared, Range

RATE = Declared("rate", float, 0.1, range=Range(0))
EPOCHS = Declared("epochs", int, 2, range=Range(1))
SPACE = {"rate": Interval(1e-4, 1e-1, "log"), "mu": Interval(0.0, 2.0, "linear")}


def test_an_axis_is_a_range_where_it_ends_in_a_scale_and_else_a_list_of_choices():
    assert parse_axis([0.001, 0.1, "log"], RATE, "x") == Interval(0.001, 0.1, "log")
    assert parse_axis([1, 5, "linear"], EPOCHS, "x") == Interval(1, 5, "linear", integer=True)
    assert parse_axis([0.001, 0.1], RATE, "x") == Choices((0.001, 0.1))
    heads = Declared("head", str, "shared", choices=("shared", "private"))
    assert parse_axis(["private"], heads, "x") == Choices(("private",))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([0.1, 0.1, "log"], "must begin below its end"),
        ([0.1, 0.01, "linear"], "must begin below its end"),
        ([0, 1, "log"], "must begin above 0"),
        ([-1, 1, "linear"], "at least 0"),
        ([0.1, "log"], r"a range is \[low, high, log\]"),
        ([0.1, 0.2, "logarithmic"], "is the text 'logarithmic'"),
        ([0.1, 0.1], "twice"),
        ([], "must be a range"),
        (0.1, "must be a range"),
    ],
)
def test_a_wrong_axis_is_named(value, message):
    with pytest.raises(ValueError, match=f"space.x.*{message}"):
        parse_axis(value, RATE, "space.x")


@pytest.mark.parametrize("power", [1, 2, 3, 4])
def test_every_part_of_every_axis_gets_its_share(power):
    """Of 2^p Sobol points exactly one lies in each of the 2^p equal parts of each axis."""
    count = 2**power
    drawn = points(SPACE, count, 100, "fedsdg")
    rates = [math.log(point["rate"] / 1e-4) / math.log(1e3) for point in drawn]
    for shares in (rates, [point["mu"] / 2 for point in drawn]):
        # Values are rounded to four digits: nothing lies that near to a boundary here.
        assert sorted(int(share * count) for share in shares) == list(range(count))


def test_points_are_repeatable_begin_alike_and_differ_between_methods_and_seeds():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        twelve = points(SPACE, 12, 100, "fedsdg")
    assert twelve == points(SPACE, 12, 100, "fedsdg") == points(SPACE, 40, 100, "fedsdg")[:12]
    assert len({tuple(point.values()) for point in twelve}) == 12
    assert twelve != points(SPACE, 12, 101, "fedsdg")
    assert twelve != points(SPACE, 12, 100, "fedavg")
    assert len(points(SPACE, 1, 100, "fedsdg")) == 1


def test_choices_and_whole_numbers_are_tried_equally_often():
    space = {
        "head": Choices(("shared", "private")),
        "epochs": Interval(1, 4, "linear", integer=True),
    }
    drawn = points(space, 16, 100, "fedsdg")
    assert sorted(p["head"] for p in drawn) == ["private"] * 8 + ["shared"] * 8
    assert np.bincount([p["epochs"] for p in drawn]).tolist() == [0, 4, 4, 4, 4]
    assert all(type(p["epochs"]) is int for p in drawn)


def test_without_a_number_of_trials_every_combination_is_tried():
    space = {"a": Choices((1, 2)), "b": Choices(("x", "y", "z"))}
    assert [tuple(p.values()) for p in points(space, None, 0, "m")] == list(
        itertools.product((1, 2), "xyz")
    )
    with pytest.raises(ValueError, match=r"space\.m\.rate is a range: say in search\.trials"):
        points(SPACE, None, 0, "m")


def test_a_range_ends_where_it_says_and_knows_its_edges():
    for axis in (Interval(0.0123456, 0.5, "log"), Interval(0.1, 0.7, "linear")):
        shares = np.linspace(0, 1, 101, endpoint=False)
        assert all(axis.low <= axis.at(share) <= axis.high for share in shares)
    log = Interval(1.0, 10.0**4, "log")
    assert log.edge(10**0.19) == "low" and log.edge(10**0.21) is None
    assert log.edge(10**3.81) == "high" and log.edge(10**3.79) is None
    assert Interval(1, 5, "linear", integer=True).edge(1) == "low"
    assert Choices((3, 1, 2)).edge(1) == "low" and Choices((3, 1, 2)).edge(3) == "high"
    assert Choices((3, 1, 2)).edge(2) is None
    assert Choices((1, 2)).edge(1) is None and Choices(("a", "b", "c")).edge("a") is None


@pytest.mark.parametrize("scores", [[0.3], [0.2, 0.9], [0.5, 0.1, 0.5, 0.7, 0.0]])
def test_the_expected_best_of_k_is_the_mean_over_all_choices_of_k(scores):
    exact = [
        np.mean([max(chosen) for chosen in itertools.combinations(scores, k)])
        for k in range(1, len(scores) + 1)
    ]
    assert expected_best(scores) == pytest.approx(exact, abs=1e-12)
    assert expected_best([]) == []
