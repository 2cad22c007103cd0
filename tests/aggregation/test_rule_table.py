"""The names of rules are those of the table of methods, and mean the same."""

import dataclasses
import doctest
import re
from pathlib import Path

import numpy as np
import pytest

import fedsdg.aggregation.rule_table
from fedsdg.aggregation import aggregate
from fedsdg.aggregation.plans import PlannedRule
from fedsdg.aggregation.rule_table import elsewhere, make_rule, rules
from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.cgsv import Cgsv
from fedsdg.aggregation.rules.cgsv_xu import CgsvXu
from fedsdg.aggregation.rules.focus import Focus
from fedsdg.aggregation.rules.geometric_median import GeometricMedian
from fedsdg.aggregation.rules.krum import Krum, MultiKrum
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.scaffold import Scaffold
from fedsdg.aggregation.rules.screened import Screened
from fedsdg.aggregation.rules.trimmed_mean import TrimmedMean
from fedsdg.methods.families import METHODS
from fedsdg.parts import declared, parameters

RULES, ELSEWHERE = rules(), elsewhere()


def test_docstring_examples():
    result = doctest.testmod(fedsdg.aggregation.rule_table)
    assert result.attempted >= 3
    assert result.failed == 0


NO_DOOR = ("CgsvXu", "Focus", "Clustered", "Pens")
"""Rules that serve several models or need losses: the federation has room for them, no door has."""


def test_the_names_are_those_of_the_methods():
    assert list(RULES) == [
        name for name in METHODS if type(METHODS[name].rule).__name__ not in NO_DOOR
    ]


@pytest.mark.parametrize("name", RULES)
def test_a_name_makes_the_rule_of_the_method(name):
    method = METHODS[name]
    assert type(make_rule(name)) is type(method.rule)
    assert make_rule(name) == method.rule
    assert set(RULES[name].settable) == {*parameters(method.rule)} - {*method.fixed}


def test_names_that_no_door_can_serve_say_why():
    others = {name for name in METHODS if type(METHODS[name].rule).__name__ in NO_DOOR}
    assert set(ELSEWHERE) == others
    with pytest.raises(ValueError, match="rule 'focus' reads losses.*`fedsdg run` has it"):
        make_rule("focus")


def test_the_documents_say_which_names_which_door_knows():
    root = Path(__file__).parents[2]
    sentence = re.search(r"all but ([^)]*)\)", (root / "docs/api.md").read_text())
    assert set(re.findall(r"`(.*?)`", sentence[1])) == set(ELSEWHERE)
    whole = {name for name in RULES if not isinstance(make_rule(name), PlannedRule)}
    for page in ("aggregate", "distributed"):
        text = (root / f"docs/{page}.md").read_text()
        sentence = re.search(r"except (`screened`[^,.]*?)(?:,| are)", text)
        assert set(re.findall(r"`(.*?)`", sentence[1])) == whole


@pytest.mark.parametrize("name", ["screened", "fedsdg+screened"])
def test_the_watch_stands_at_the_door_by_its_name(name):
    """Round after round an update far out; in the third round it is blocked, and 0 weighs."""
    theta, state = np.zeros(6), None
    clients = np.random.default_rng(0).normal(1.0, 0.1, size=(8, 6))
    clients[3] = -50
    row = {"type": name, "strikes": 3}
    for round_ in (1, 2, 3):
        found = aggregate(row, theta, clients, num_clients=8, state=state, round=round_)
        state = found.state
        assert found.diagnostics["blocked"][3] == (round_ == 3)
    np.testing.assert_allclose(found.parameters, 1.0, atol=0.2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Krum(f=1.5),
        lambda: Krum(f=True),
        lambda: MultiKrum(1, m="2"),
        lambda: TrimmedMean(f=None),
        lambda: Alignment(max_weight="x"),
        lambda: Alignment(epsilon=None),
        lambda: Alignment(reference=["mean"]),
        lambda: GeometricMedian(tolerance="1e-6"),
        lambda: GeometricMedian(tolerance=np.array([1e-6, 1e-6])),
        lambda: Cgsv(gamma0="a"),
        lambda: Cgsv(step_scale=np.array(["unit", "unit"])),
        lambda: CgsvXu(beta=[]),
        lambda: Screened(Mean(), strikes=1.5),
        lambda: Mean(weights=None),
        lambda: Scaffold(server_rate="fast"),
        lambda: Focus(temperature=1j),
    ],
)
def test_parameters_of_the_wrong_type_are_values_that_are_refused(make):
    with pytest.raises(ValueError, match="^[a-z0-9_]+ is .*, but must be") as caught:
        make()
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize("name", RULES)
def test_every_parameter_of_a_row_reaches_the_rule(name):
    """The limits that the config allows, one parameter at a time."""
    for key in RULES[name].settable:
        parameter = METHODS[name].parameters[key]
        limits = parameter.range
        values = [*(parameter.choices or ()), limits.least, limits.most, parameter.default]
        for value in values:
            if value is None and not parameter.optional:
                continue  # No limit.
            rule, plain = make_rule({"type": name, "name": "a label", key: value}), make_rule(name)
            if key not in declared(rule):
                rule, plain = rule.inner, plain.inner
            assert getattr(rule, key) == value
            others = {field.name for field in dataclasses.fields(rule)} - {key}
            assert all(getattr(rule, other) == getattr(plain, other) for other in others)


def test_rule_objects_pass_through():
    rule = Krum(2)
    assert make_rule(rule) is rule


def test_values_are_taken_in_their_type():
    assert make_rule({"type": "krum", "f": np.int64(2)}) == Krum(2)
    assert type(make_rule({"type": "krum", "f": 2.0}).f) is int
    row = {"type": "geometric-median", "tolerance": np.float32(0.0625)}
    assert make_rule(row) == GeometricMedian(0.0625)
    assert make_rule({"type": "fedsdg", "max_weight": None}).max_weight is None


def test_a_row_sets_the_fields_of_the_rule_behind_the_watch():
    row = {"type": "screened", "weights": "batches", "strikes": 3}
    assert make_rule(row) == Screened(Mean("batches"), strikes=3)
    assert list(RULES["fedsdg+screened"].settable) == [*declared(Alignment), "strikes", "threshold"]


def test_what_a_name_fixes_is_a_parameter_of_its_rule():
    for name, one in RULES.items():
        assert {*one.settable, *one.fixed} == set(parameters(one.rule)), name
        assert not {*one.settable} & {*one.fixed}, name
        assert {key: known.default for key, known in one.settable.items()}.items() <= {
            key: known.default for key, known in parameters(make_rule(name)).items()
        }.items()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("Fedsdg", "there is no rule 'Fedsdg'; did you mean 'fedsdg'?"),
        ("xyz", "there is no rule 'xyz'; known are fedsdg, fedavg"),
        ({"type": "krum", "g": 1}, "rule krum: unknown key 'g'; known are f"),
        ({"type": "fedsdg", "epsilom": 1}, "unknown key 'epsilom'; did you mean 'epsilon'?"),
        ({"type": "fedsdg", "lambda1": 1}, "rule fedsdg: unknown key 'lambda1'; known are eps"),
        (
            {"type": "fedavg-uniform", "weights": "samples"},
            "rule fedavg-uniform: unknown key 'weights'; there are none",
        ),
        ({"f": 1}, "rule has the type None; name one of fedsdg"),
        ({"type": ["krum"]}, "rule has the type"),
        (
            {"type": "fedsdg-official-aligned", "epsilon": 1e-9},
            "rule fedsdg-official-aligned: unknown key 'epsilon'; known are temperature",
        ),
        ({"type": "krum", "f": "1"}, "rule krum.f is the text '1', but must be a number"),
        ({"type": "krum", "f": True}, "rule krum.f is True, but must be a number"),
        ({"type": "krum", "f": 1.5}, "rule krum.f is 1.5, but must be a whole number"),
        ({"type": "krum", "f": float("nan")}, "rule krum.f is nan, but must be at least 0"),
        ({"type": "krum", "f": float("inf")}, "rule krum.f is inf, but must be a finite number"),
        ({"type": "krum", "f": 10**400}, "…, but must be a finite number"),
        ({"type": "krum", "f": None}, "rule krum.f is None, but must be a number"),
        ({"type": "krum", "f": np.ones((2, 2))}, "array([[1., 1.], [1., 1.]]), but must be a num"),
        ({"type": "krum", "f": -1}, "rule krum.f is -1, but must be at least 0"),
        ({"type": "fedsdg", "epsilon": 1j}, "rule fedsdg.epsilon is 1j, but must be a number"),
        ({"type": "fedsdg", "epsilon": 0}, "fedsdg.epsilon is 0, but must be at least 1e-300"),
        ({"type": "fedsdg", "reference": 3}, "is 3, but must be one of mean, leave_one_out"),
        ({"type": "fedsdg", "transform": "rely"}, "is 'rely', but must be one of relu, softmax"),
        ({"type": "fedsdg", "smoothing": float("nan")}, "smoothing is nan, but must be at least 0"),
        ({"type": "fedsdg+screened", "strikes": 0}, "+screened.strikes is 0, but must be at least"),
        (Krum, "rule is the class Krum; give an instance, Krum()"),
        (None, "rule is a NoneType; give a name"),
        (lambda: None, "rule is a function; give a name"),
    ],
)
def test_errors_name_the_rule_the_parameter_and_the_remedy(row, message):
    with pytest.raises(ValueError) as error:
        make_rule(row)
    assert message in str(error.value)
