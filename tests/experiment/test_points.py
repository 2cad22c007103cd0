"""The points of a search: properties of the sequence, and of axes."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsdg.config.search import Interval
from fedsdg.experiment.points import (
    DIGITS,
    FIRST,
    dimension,
    edge,
    expected_best,
    points,
    value_at,
)

LOG = Interval(1e-4, 1.0, log=True)
LINEAR = Interval(0.0, 1.0, log=False)
NAMES = st.sampled_from([*FIRST, "own_rate", "temperature"])


@given(st.lists(NAMES, min_size=1, max_size=5, unique=True), st.integers(1, 40), NAMES)
def test_a_coordinate_depends_on_its_parameter_and_trial_alone(names, trials, name):
    alone = points({name: LOG}, 64)
    shared = points({**dict.fromkeys(names, LINEAR), name: LOG}, trials)
    assert [point[name] for point in shared] == [point[name] for point in alone[:trials]]


@pytest.mark.parametrize("name", [*FIRST, "own_rate"])
def test_each_axis_is_filled_evenly(name):
    shares = sorted(point[name] for point in points({name: LINEAR}, 32))
    assert all(
        k / 32 <= share + 1e-3 and share - 1e-3 < (k + 1) / 32 for k, share in enumerate(shares)
    )


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(FIRST[:6], 2)])
def test_planes_of_common_parameters_are_filled(one, other):
    drawn = points({one: LINEAR, other: LINEAR}, 24)
    cells = {(math.floor(3 * point[one]), math.floor(3 * point[other])) for point in drawn}
    assert len(cells) >= 8


def test_dimensions_of_parameters_are_fixed():
    # A search that goes on with another version tries the same points.
    assert [dimension(name) for name in ("eta_g", "mu", "own_rate")] == [0, 7, 64 + 257]
    assert points({"eta_g": LINEAR}, 1) == [{"eta_g": 0.7201}]


def test_parameters_with_one_coordinate_are_refused():
    seen: dict[int, str] = {}
    number = 0
    while dimension(f"p{number}") not in seen:
        seen[dimension(f"p{number}")] = f"p{number}"
        number += 1
    one, other = seen[dimension(f"p{number}")], f"p{number}"
    with pytest.raises(ValueError, match=f"{one} and {other} would be tried along a diagonal"):
        points({one: LINEAR, other: LINEAR}, 4)


def test_without_a_number_every_combination_is_tried():
    found = points({"a": (1, 2), "b": ("x", "y", "z")}, None)
    assert found == [{"a": a, "b": b} for a in (1, 2) for b in ("x", "y", "z")]
    with pytest.raises(ValueError, match="a is a range; say in search.trials"):
        points({"a": LOG}, None)


@given(
    st.floats(1e-6, 1e3),
    st.floats(1.01, 1e4),
    st.booleans(),
    st.floats(0, 1, exclude_max=True),
)
def test_values_lie_in_their_interval(low, factor, log, share):
    axis = Interval(low, low * factor, log)
    value = value_at(axis, share)
    assert axis.low <= value <= axis.high
    inside = axis.low < value < axis.high
    assert not inside or value == float(f"{value:.{DIGITS}g}")


@given(st.integers(1, 50), st.integers(1, 50), st.booleans(), st.floats(0, 1, exclude_max=True))
def test_whole_numbers_stay_whole(low, more, log, share):
    value = value_at(Interval(low, low + more, log, whole=True), share)
    assert isinstance(value, int) and low <= value <= low + more


def test_choices_have_equal_parts():
    values = [value_at(("a", "b", "c"), k / 30) for k in range(30)]
    assert values == ["a"] * 10 + ["b"] * 10 + ["c"] * 10


@pytest.mark.parametrize(
    ("axis", "value", "side"),
    [
        (LOG, 1.5e-4, "low"),
        (LOG, 2e-4, None),
        (LOG, 0.7, "high"),
        (LINEAR, 0.5, None),
        (LINEAR, 0.0, "low"),
        ((1, 2, 4), 1, "low"),
        ((1, 2, 4), 4, "high"),
        ((1, 2, 4), 2, None),
        ((1, 2), 1, None),
        (("a", "b", "c"), "a", None),
        ((True, False, True), True, None),
    ],
)
def test_edges(axis, value, side):
    assert edge(axis, value) == side


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7))
def test_the_expected_best_is_the_mean_over_all_choices(scores):
    for k, expected in enumerate(expected_best(scores), start=1):
        best = [max(chosen) for chosen in itertools.combinations(scores, k)]
        assert expected == pytest.approx(sum(best) / len(best))
