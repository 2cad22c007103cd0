"""A part says each of its parameters once, and refuses what is not one in a sentence."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Annotated, Literal

import numpy as np
import pytest

from fedsdg.parts import Ends, Range, checked, declared, make, parameters, part, replaced


class Rule:
    """What a screen holds."""


@part
class Krum(Rule):
    """The one with the nearest neighbours."""

    f: Annotated[int, Range(0)] = 1
    "f, Byzantine clients tolerated"
    weights: Literal["samples", "uniform"] = "samples"
    """what a client
    counts by"""
    share: Annotated[float | None, Range(0, 1)] = None
    "a share, or none"
    strict: bool = False
    "whether ties count"
    gammas: Annotated[tuple[float, ...] | Ends, Range(0, 1)] = (0.9, 0.5)
    "some, or between two ends"

    def __post_init__(self) -> None:
        if self.share is not None and self.share > 0.5 and self.f:
            raise ValueError(f"share is {self.share}, but f is {self.f}; lower one of them")


@part
class Screened(Rule):
    inner: Rule
    strikes: Annotated[int, Range(1)] = 2
    "rounds until a client is blocked"


@part
class Careful(Krum):
    patience: Annotated[int, Range(0)] = 3
    "rounds without a gain"


def test_a_field_is_the_parameter():
    known = declared(Krum)
    assert list(known) == ["f", "weights", "share", "strict", "gammas"]
    assert known["f"].kind is int and known["f"].range == Range(0) and known["f"].default == 1
    assert known["weights"].choices == ("samples", "uniform")
    assert known["weights"].meaning == "what a client counts by"
    assert known["share"].optional and known["share"].kind is float
    assert known["gammas"].several and known["gammas"].ends and not known["gammas"].optional
    assert declared(Krum()) is known


def test_a_part_is_frozen_and_compares_and_travels():
    assert Krum(f=2) == Krum(2) != Krum()
    with pytest.raises(dataclasses.FrozenInstanceError):
        Krum().f = 2  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(Krum(gammas=Ends(0.1, 0.2)))) == Krum(gammas=Ends(0.1, 0.2))


def test_values_take_their_proper_type():
    made = Krum(f=np.int64(2), share=np.float32(0.5), gammas=[0, 1])
    assert type(made.f) is int and type(made.share) is float and made.gammas == (0.0, 1.0)
    assert type(Krum(f=2.0).f) is int


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"f": -1}, "^f is -1, but must be at least 0$"),
        ({"f": 1.5}, "^f is 1.5, but must be a whole number$"),
        ({"f": True}, "^f is True, but must be a number$"),
        ({"f": None}, "^f is None, but must be a number$"),
        ({"f": np.array([1, 2])}, r"^f is array\(\[1, 2\]\), but must be a number$"),
        ({"share": "1e-4"}, r"^share is the text '1e-4', but must be a number \(YAML reads"),
        ({"share": 2}, "^share is 2, but must be at most 1$"),
        ({"share": float("nan")}, "^share is nan, but must be at least 0$"),
        ({"f": 10**400}, "^f is 1000.*…, but must be a finite number$"),
        ({"weights": "sample"}, "^weights is 'sample', but must be one of samples, uniform$"),
        ({"strict": 1}, "^strict is 1, but must be true or false$"),
        ({"gammas": 0.5}, "^gammas is 0.5, but must be a list of numbers, or a mapping of low"),
        ({"gammas": [0.5, 2]}, r"^gammas\[1\] is 2, but must be at most 1$"),
        ({"gammas": {"low": 1, "high": 0}}, "^gammas: low = 1.0 is above high = 0.0; exchange"),
        ({"share": 0.75}, "^share is 0.75, but f is 1; lower one of them$"),
    ],
)
def test_what_is_wrong_is_one_sentence(given, said):
    with pytest.raises(ValueError, match=said):
        Krum(**given)


def test_a_config_names_the_place_and_the_key_that_was_meant():
    assert make(Krum, {"gammas": {"low": 0, "high": 1}}, "rule").gammas == Ends(0.0, 1.0)
    with pytest.raises(ValueError, match=r"^rule\.f is -1, but must be at least 0$"):
        make(Krum, {"f": -1}, "rule")
    with pytest.raises(ValueError, match=r"^rule: unknown key 'weight'; did you mean 'weights'\?"):
        make(Krum, {"weight": "samples"}, "rule")
    with pytest.raises(ValueError, match=r"^rule is 3, but must be a mapping"):
        make(Krum, 3, "rule")
    with pytest.raises(ValueError, match=r"^rule: share is 0.75, but f is 1"):
        make(Krum, {"share": 0.75}, "rule")
    with pytest.raises(ValueError, match=r"^rule lacks the key 'inner'"):
        make(Screened, {}, "rule")


def test_a_part_within_a_part_lends_it_its_parameters():
    screen = Screened(Krum(f=2))
    found = parameters(screen)
    assert list(found) == ["f", "weights", "share", "strict", "gammas", "strikes"]
    assert found["f"].default == 2 and found["strikes"].default == 2
    assert replaced(screen, {"f": 3, "strikes": 4}) == Screened(Krum(f=3), 4)
    assert replaced(screen, {"other": 1}) is screen
    with pytest.raises(ValueError, match="f is -1"):
        replaced(screen, {"f": -1})


def test_a_parameter_has_one_owner():
    with pytest.raises(ValueError, match="both Krum and Careful own a parameter 'f'; rename one"):
        parameters(Krum(), Careful())


def test_a_part_inherits_fields_and_checks():
    assert list(declared(Careful)) == [*declared(Krum), "patience"]
    for given in ({"f": -1}, {"patience": -1}, {"share": 0.75}):
        with pytest.raises(ValueError, match="lower one|at least 0"):
            Careful(**given)


def test_whoever_declares_half_a_field_is_told():
    @part
    class Rangeless:
        f: int = 1
        "without a range"

    @part
    class Meaningless:
        f: Annotated[int, Range(0)] = 1

    with pytest.raises(TypeError, match=r"Rangeless\.f has no range; write Annotated\[int, Range"):
        Rangeless()
    with pytest.raises(TypeError, match=r"Meaningless\.f has no meaning; write it as a string"):
        Meaningless()


def test_a_module_that_is_in_no_table_of_modules_may_declare_parts(tmp_path):
    """As a plugin's, which is executed from its file."""
    file = tmp_path / "outside.py"
    file.write_text(
        "from typing import Annotated\n"
        "from fedsdg.parts import Range, part\n"
        "@part\n"
        "class Own:\n"
        "    f: Annotated[int, Range(0)] = 1\n"
        "    'what it is'\n"
    )
    names: dict = {"__name__": "nowhere"}
    exec(compile(file.read_text(), str(file), "exec", dont_inherit=True), names)
    assert declared(names["Own"])["f"].meaning == "what it is"


def test_a_mapping_is_checked_against_fields():
    assert checked({"f": 2}, declared(Krum), "x") == {"f": 2}
