"""The table of methods: every row builds, and every parameter of a row is used by it."""

import pytest

from fedsdg.aggregation.types import Ask
from fedsdg.federation.fisher import FisherInformation
from fedsdg.federation.probes import CrossLosses, ModelScores, Probe
from fedsdg.methods.composition import Key, Part
from fedsdg.methods.table import METHODS

ROWS = pytest.mark.parametrize("name", METHODS)


def parts(name: str) -> tuple[Part, ...]:
    return METHODS[name].parts


def keys(part: Part) -> set[str]:
    """The parameters that a part asks for, and the parts within it."""
    values = part.arguments.values()
    own = {value.name for value in values if isinstance(value, Key)}
    return own.union(*(keys(value) for value in values if isinstance(value, Part)))


@ROWS
def test_every_part_builds_with_the_defaults(name):
    parameters = {key: parameter.default for key, parameter in METHODS[name].parameters.items()}
    for part in parts(name):
        assert part.build(parameters) is not None


@ROWS
def test_parameters_are_exactly_those_the_parts_ask_for(name):
    asked = {key for part in parts(name) for key in keys(part)}
    assert asked == set(METHODS[name].parameters)


@ROWS
def test_defaults_pass_their_own_checks(name):
    for key, parameter in METHODS[name].parameters.items():
        assert parameter.check(parameter.default, key) == parameter.default


def measured(ask: Ask) -> Probe:
    """What the federation has for what a rule asks."""
    if ask.kind == "scores":
        return ModelScores(ask.sample, ask.rounds)
    return {"losses": CrossLosses, "fisher": FisherInformation}[ask.kind]()


@ROWS
def test_a_rule_asks_for_what_its_row_has_measured(name):
    row, defaults = METHODS[name], {k: p.default for k, p in METHODS[name].parameters.items()}
    for others in ({}, {"assignment": "known"}, {"sample": 3, "phase_one": 7}):
        given = {**defaults, **{key: v for key, v in others.items() if key in defaults}}
        built = [part.build(given) for part in row.probes]
        asked = row.rule.build(given).probes
        assert [measured(ask) for ask in asked] == [one for one in built if type(one) is not Probe]


@ROWS
def test_terms_that_need_an_optimiser_get_it(name):
    parameters = {key: parameter.default for key, parameter in METHODS[name].parameters.items()}
    for part in METHODS[name].objective:
        wanted = part.build(parameters).optimiser
        assert wanted is None or wanted == METHODS[name].optimiser
