"""The table of methods: every row builds, and every parameter of a row is used by it."""

import pytest

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


@ROWS
def test_terms_that_need_an_optimiser_get_it(name):
    parameters = {key: parameter.default for key, parameter in METHODS[name].parameters.items()}
    for part in METHODS[name].objective:
        wanted = part.build(parameters).optimiser
        assert wanted is None or wanted == METHODS[name].optimiser
