"""Declared parts: what they accept, what they say when they refuse, what is hashed of them."""

import pickle
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field

from fedsdg.errors import ConfigError, hint, joined, shortened
from fedsdg.parts import (
    Chosen,
    Ends,
    Part,
    Several,
    Share,
    model_of,
    parameters,
    with_parameters,
)


class Spice(Part, kind=True):
    """A kind of part."""

    hot: ClassVar[bool] = False


class Pepper(Spice, name="pepper"):
    """Pepper."""

    hot: bool = True
    "whether it burns"
    grains: Annotated[int, Field(ge=1)] = 3
    "how many"


class Salt(Spice, name="salt"):
    """Salt."""


class Soup(Part):
    """A part with a part, a list, a choice, and fields that depend on one another."""

    spice: Annotated[Spice, Chosen(Spice)] = Salt()
    "what it tastes of"
    heat: Share = 0.5
    "share of its heat"
    times: Several[Annotated[float, Field(ge=0)]] | Ends | None = None
    "minutes"
    kind: Literal["thin", "thick"] = "thin"
    "how it flows"

    def check_fields(self) -> None:
        if self.kind == "thick" and self.heat < 0.1:
            raise ValueError("a thick soup needs heat; raise heat")


class Pot(Part):
    """A part around a part."""

    soup: Soup
    "what is in it"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"heat": 2}, "pot.soup.heat is 2, but must be at most 1"),
        ({"heat": "2e-1"}, "pot.soup.heat is '2e-1', but must be a number"),
        ({"heat": True}, "pot.soup.heat is True, but must be a number"),
        ({"heat": float("inf")}, "pot.soup.heat is inf, but must be a"),
        ({"head": 1}, "pot.soup has an unknown key 'head'; did you mean 'heat'?"),
        ({"kind": "thik"}, "pot.soup.kind is 'thik', but must be one of 'thin' or 'thick'; did"),
        ({"spice": "peper"}, "pot.soup.spice names no known spice: 'peper'; did you mean 'pepper'"),
        ({"spice": {"type": "pepper", "grain": 1}}, "pot.soup.spice has an unknown key 'grain'"),
        ({"spice": {"type": "pepper", "grains": 0}}, "pot.soup.spice.grains is 0, but must be at"),
        ({"spice": {"grains": 0}}, "pot.soup.spice is {'grains': 0}, but must name a 'type'"),
        ({"spice": 3}, "pot.soup.spice is 3, but must be the name of one"),
        ({"times": []}, "pot.soup.times is [], but must be a list with at least one entry"),
        ({"times": [1, -1]}, "pot.soup.times[1] is -1, but must be at least 0"),
        ({"kind": "thick", "heat": 0}, "pot.soup: a thick soup needs heat; raise heat"),
        (3, "pot.soup is 3, but must be a mapping of keys to values"),
    ],
)
def test_an_error_is_one_sentence_with_place_and_remedy(given, sentence):
    with pytest.raises(ConfigError) as caught:
        Pot.read({"soup": given}, "pot")
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_explained():
    with pytest.raises(ConfigError, match=r"lacks the key 'soup': what is in it"):
        Pot.read({})


def test_a_part_made_in_python_is_checked_alike():
    with pytest.raises(ConfigError, match=r"^grains is 0, but must be at least 1$"):
        Pepper(grains=0)
    with pytest.raises(ConfigError, match=r"^soup.heat is 3, but must be at most 1$"):
        Pot(soup={"heat": 3})


def test_parts_are_frozen_hashable_and_equal_by_value():
    assert Pepper() == Pepper(grains=3)
    assert len({Pepper(), Pepper(), Salt()}) == 2
    with pytest.raises(ConfigError, match=r"^Pepper.grains cannot be set: .* the state of a rule$"):
        Pepper().grains = 4
    assert pickle.loads(pickle.dumps(Soup(spice=Pepper()))) == Soup(spice="pepper")


def test_whole_numbers_become_floats_and_nothing_else_is_converted():
    assert isinstance(Soup(heat=1).heat, float)
    assert Soup(times=[1, 2]).times == (1.0, 2.0)
    with pytest.raises(ConfigError):
        Pepper(grains=1.0)
    with pytest.raises(ConfigError):
        Pepper(hot=1)


def test_ends_rise():
    assert Soup(times={"low": 0.1, "high": 0.3}).times == Ends(low=0.1, high=0.3)
    with pytest.raises(ConfigError, match="exchange them"):
        Ends(low=0.3, high=0.1)


def test_a_name_is_registered_once_under_its_kind():
    assert Spice.registry == {"pepper": Pepper, "salt": Salt}
    assert (Pepper.registered_as, Soup.registered_as) == ("pepper", "")
    with pytest.raises(ConfigError, match=r"takes the name 'salt', which exists; rename it"):
        type("Other", (Spice,), {"__module__": __name__}, name="salt")


def test_a_constant_that_is_nearly_one_of_its_kind_is_refused():
    class Herb(Part):
        origins: ClassVar[tuple[str, ...]] = ()

    with pytest.raises(ConfigError, match=r"Thyme sets 'origin', .*; did you mean 'origins'\?$"):

        class Thyme(Herb):
            origin: ClassVar = ("north",)

    class Sage(Herb):
        origins: ClassVar = ("south",)
        leaves: ClassVar = 3
        origin: int = 4

    assert (Sage.origins, Sage().origin) == (("south",), 4)


def test_overrides_are_what_differs_from_the_defaults():
    assert Soup().overrides() == {}
    assert Soup(heat=0.5, spice="salt").overrides() == {}
    changed = Soup(spice={"type": "pepper", "grains": 9}, times=[1.0])
    assert changed.overrides() == {"spice": {"type": "pepper", "grains": 9}, "times": [1.0]}
    assert Soup.read(changed.overrides()) == changed


def test_parameters_reach_into_inner_parts():
    pot = Pot(soup=Soup(spice=Pepper(grains=5)))
    known = parameters(pot)
    assert {name: info.default for name, info in known.items()} == {
        "hot": True,
        "grains": 5,
        "heat": 0.5,
        "times": None,
        "kind": "thin",
    }
    changed = with_parameters(pot, {"grains": 7, "heat": 1})
    assert changed.soup.spice == Pepper(grains=7)
    assert changed.soup.heat == 1.0
    assert with_parameters(pot, {"unknown": 1}) is pot
    with pytest.raises(ValueError, match=r"both Pepper and Pepper own a parameter 'hot'"):
        parameters(Pepper(), Pepper())


def test_a_text_that_is_executed_may_define_a_part():
    names = {"__name__": "nowhere", "Part": Part}
    exec("class Leek(Part):\n    length: int = 3\n    'in cm'\n", names)
    assert names["Leek"](length=4).length == 4
    assert Pepper.model_fields["grains"].description == "how many"


def test_values_of_parameters_are_checked():
    model = model_of(parameters(Pepper(grains=5)))
    assert dict(model.read({"hot": False})) == {"hot": False, "grains": 5}
    with pytest.raises(ConfigError, match=r"rule krum.grains is 0, but must be at least 1"):
        model.read({"grains": 0}, "rule krum")


def test_words():
    assert hint("fedavgg", ["fedavg", "krum"]) == "; did you mean 'fedavg'?"
    assert hint("zzz", ["fedavg", "krum"]) == "; known are fedavg, krum"
    assert hint("zzz", []) == "; there are none"
    assert (joined("a", "b"), joined("a", "[0]"), joined("", "b")) == ("a.b", "a[0]", "b")
    assert len(shortened("x" * 1000)) == 100
    error = ConfigError("is 3", "a.b").within("c")
    assert str(pickle.loads(pickle.dumps(error))) == "c.a.b is 3"
