"""The table of methods: every row builds, and every parameter of a row is used by it."""

import pytest
from fedsdg.methods.composition import Key, Part
from fedsdg.methods.table import METHODS

from fedsdg.aggregation.types import Ask
from fedsdg.federation.fisher import FisherInformation
from fedsdg.federation.objectives.gate_penalty import GatePenalty
from fedsdg.federation.objectives.private_penalty import PrivatePenalty
from fedsdg.federation.probes import CrossLosses, ModelScores, Probe

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
    brought = METHODS[name].personalisation.build(parameters).terms
    for term in (*brought, *(part.build(parameters) for part in METHODS[name].objective)):
        assert term.optimiser in (None, METHODS[name].optimiser)


@ROWS
def test_the_terms_that_are_listed_are_those_that_clients_train_with(name):
    """The list is made without torch, so it cannot ask the personalisation."""
    row = METHODS[name]
    parameters = {key: parameter.default for key, parameter in row.parameters.items()}
    terms = [type(term).__name__ for term in row.personalisation.build(parameters).terms]
    terms += [type(part.build(parameters)).__name__ for part in row.objective]
    assert list(row.term_names) == terms


@pytest.mark.parametrize("name", [name for name in METHODS if name.startswith("fedsdg")])
def test_every_fedsdg_brings_its_penalties_with_the_configs_values(name):
    row = METHODS[name]
    given = {"lambda1": 0.25, "lambda2": 0.5}
    if "private_norm" in row.parameters:
        given["private_norm"] = "residual"
    parameters = row.complete(given)
    branch = row.personalisation.build(parameters)
    norm = given.get("private_norm", "factors")
    assert branch.terms == (GatePenalty(0.25), PrivatePenalty(0.5, norm))
    assert row.objective == ()
