"""The table of methods: every row builds, and every parameter of a row is used by it."""

import pytest

from fedsdg.composition import Key, Part
from fedsdg.methods import METHODS

ROWS = pytest.mark.parametrize("name", METHODS)


def parts(name: str) -> list[Part]:
    row = METHODS[name]
    found = [row.rule, *row.objective, row.personalisation, *row.probes]
    return found if row.stopping is None else [*found, row.stopping]


@ROWS
def test_every_part_builds_with_the_defaults(name):
    parameters = {key: parameter.default for key, parameter in METHODS[name].parameters.items()}
    for part in parts(name):
        assert part.build(parameters) is not None


@ROWS
def test_parameters_are_exactly_those_the_parts_ask_for(name):
    asked = {
        value.name
        for part in parts(name)
        for value in part.arguments.values()
        if isinstance(value, Key)
    }
    assert asked == set(METHODS[name].parameters)


@ROWS
def test_defaults_pass_their_own_checks(name):
    for key, parameter in METHODS[name].parameters.items():
        assert parameter.check(parameter.default, key) == parameter.default


@ROWS
def test_terms_that_need_an_optimiser_get_it(name):
    parameters = {key: parameter.default for key, parameter in METHODS[name].parameters.items()}
    for part in METHODS[name].objective:
        wanted = part.build(parameters).optimiser
        assert wanted is None or wanted == METHODS[name].optimiser
