"""Who is in colour, and where axes end."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedsdg.analysis.plots import style
from fedsdg.analysis.plots.style import GREY, IN_COLOUR, YARDSTICK, cast, fences, leads, looks
from fedsdg.analysis.summary import Roles
from fedsdg.files.declarations import titles

CEILING = "centralised"


def test_at_most_five_are_in_colour_and_the_roles_are_always_among_them() -> None:
    methods = list(titles("methods"))
    look = cast(methods, {"scaffold": 0.9, "krum": 0.2, CEILING: 0.99})
    coloured = [m for m in methods if look[m].colour != GREY and m != CEILING]
    assert len(coloured) == IN_COLOUR == 5
    assert set(coloured) == {*style.always(), "scaffold"}, "the best other one fills the place"
    assert look[CEILING].colour != GREY
    assert list(look) == methods
    assert look["fedsdg"] == looks(["fedsdg"])["fedsdg"]
    assert sum(one.colour == GREY for one in look.values()) == len(methods) - 6


def test_few_methods_all_keep_their_colours() -> None:
    methods = ["fedsdg", "krum", "cgsv", "fedavg", "scaffold", CEILING]
    assert cast(methods, {}) == looks(methods)
    assert leads([*methods, "focus"], {"krum": 0.1, "focus": 0.2, "cgsv": 0.3}) == [
        *("fedsdg", "fedavg", "krum", "cgsv", "focus")
    ]


def test_other_roles_are_drawn_as_the_usual_ones_are() -> None:
    """Whoever is the subject is the widest, in its own colour; whoever is the ceiling has no
    marks, and who is no longer either is drawn as any other method."""
    methods = list(titles("methods"))
    usual = looks(methods)
    with style.styled(Roles("krum", ("fedavg",), "data-sharing")):
        look, coloured = looks(methods), leads(methods, {"scaffold": 0.9, "data-sharing": 1.0})
        known = cast(methods, {"scaffold": 0.9})
    assert set(coloured) == {"krum", "fedavg", "fine-tune", "local-only", "scaffold"}
    assert look["krum"].colour == usual["krum"].colour and known["krum"] == look["krum"]
    assert max(methods, key=lambda method: look[method].width) == "krum"
    assert look["krum"].width == usual["fedsdg"].width > look["fedsdg"].width
    assert look["data-sharing"] == YARDSTICK == usual["centralised"]
    assert look["centralised"].marker and look["fedsdg"].width == look["fedavg"].width
    assert looks(methods) == usual, "the roles are those of one drawing"


def test_a_far_value_does_not_stretch_an_axis() -> None:
    near = np.random.default_rng(3).normal(0.0, 2.0, 60)
    assert fences([*near, 70.0]) == pytest.approx((near.min(), near.max()))
    assert fences([*near, -70.0]) == pytest.approx((near.min(), near.max()))
    # Nothing is cut off where there is nothing to gain, nor from a handful of equal values.
    assert fences(np.linspace(0, 10, 11)) == (0.0, 10.0)
    assert fences([1.0, 1.0, 1.0, 1.0]) == (1.0, 1.0)


def test_ticks_are_whole_and_within_the_data() -> None:
    axes = Figure().subplots()
    axes.set_xlim(-3, 64)
    style.ticks_within(axes.xaxis, 1, 60)
    ticks = axes.get_xticks()
    assert len(ticks) > 2 and ticks.min() >= 1 and ticks.max() <= 60
    assert (ticks == np.round(ticks)).all()
