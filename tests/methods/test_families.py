"""The rows of methods: made of parts that fit together, and settable in what is theirs."""

import dataclasses

import pytest

from fedsdg.federation.terms import GatePenalty, PrivatePenalty
from fedsdg.methods import describing
from fedsdg.methods.families import FAMILIES, METHODS
from fedsdg.methods.method import Method
from fedsdg.methods.plugins import find_method
from fedsdg.parts import parameters

ROWS = pytest.mark.parametrize("name", METHODS)


def test_every_method_has_one_row_in_one_family():
    names = [name for rows in FAMILIES.values() for name in rows]
    assert sorted(names) == sorted(METHODS) and len(names) == len(set(names))


@ROWS
def test_parameters_are_those_of_the_parts_but_the_fixed_ones(name):
    row = METHODS[name]
    assert {*row.parameters, *row.fixed} == {*parameters(*row.parts)}
    assert not {*row.parameters} & {*row.fixed}
    assert row.fixed_values.keys() == {*row.fixed}


@ROWS
def test_a_value_reaches_the_one_part_that_owns_it(name):
    """Whatever is set is found again in the parts, and nothing else has changed."""
    row = METHODS[name]
    for key, known in row.parameters.items():
        least = known.range.least
        ends = (least, known.range.most, *(known.choices or ()))
        others = [one for one in ends if one is not None and one != known.default]
        if known.several or not others:
            continue
        try:
            changed = row.with_values({key: others[-1]})
        except ValueError:  # It does not go with the defaults of the others.
            continue
        now = {name: one.default for name, one in changed.parameters.items()}
        assert now[key] == others[-1]
        before = {name: one.default for name, one in row.parameters.items()}
        assert {**now, key: 0} == {**before, key: 0}


@ROWS
def test_defaults_pass_their_own_checks(name):
    for key, known in METHODS[name].parameters.items():
        assert known.check(known.default, key) == known.default
    same = METHODS[name].with_values({k: d.default for k, d in METHODS[name].parameters.items()})
    assert same == METHODS[name]


@ROWS
def test_terms_that_need_an_optimiser_get_it(name):
    for term in METHODS[name].terms:
        assert term.optimiser in (None, METHODS[name].optimiser)


@pytest.mark.parametrize("name", [name for name in METHODS if name.startswith("fedsdg")])
def test_every_fedsdg_brings_its_penalties_with_the_configs_values(name):
    row = METHODS[name]
    given = {"lambda1": 0.25, "lambda2": 0.5}
    if "private_norm" in row.parameters:
        given["private_norm"] = "residual"
    norm = given.get("private_norm", "factors")
    made = row.with_values(given)
    assert made.terms == (GatePenalty(0.25), PrivatePenalty(0.5, norm))
    assert row.objective == ()


def test_a_row_that_fixes_what_no_part_has_is_refused():
    with pytest.raises(ValueError, match="Krum fixes g, which none of its parts has; correct"):
        dataclasses.replace(METHODS["krum"], fixed=("g",))


def test_two_owners_of_one_parameter_are_named():
    """Both FedProx's term and Ditto's would be set by `mu`."""
    twice = (*METHODS["fedprox"].objective, *METHODS["fedprox"].objective)
    with pytest.raises(ValueError, match="both Proximal and Proximal own a parameter 'mu'"):
        Method(title="Twice", rule=METHODS["fedavg"].rule, objective=twice)


def test_a_row_counts_without_its_words():
    row = METHODS["krum"]

    def same(**changed):
        other = dataclasses.replace(row, **changed)
        return describing.text_of(other) == describing.text_of(row)

    assert same(title="K", formula="", source="", up="3d", down="0", client_cost="", server_cost="")
    assert not same(rule=dataclasses.replace(row.rule, f=2))
    assert not same(rule=METHODS["multikrum"].rule)
    assert not same(optimiser="sgd")
    assert not same(training={"epochs": 3})
    assert not same(objective=METHODS["fedprox"].objective)
    assert not same(personalisation=METHODS["ditto"].personalisation)


def test_what_a_row_holds_must_be_written_the_same_way_every_time():
    """The order of a set depends on the process, the name of an object on its address."""
    for odd in ({"eta_g", "eta_p"}, object()):
        with pytest.raises(TypeError, match="no text that is always equal"):
            describing.text_of(dataclasses.replace(METHODS["krum"], training={"epochs": odd}))


def test_a_row_that_was_edited_after_its_declaration_is_not_run(monkeypatch):
    edited = dataclasses.replace(METHODS["krum"], optimiser="sgd")
    monkeypatch.setattr("fedsdg.methods.families.METHODS", {**METHODS, "krum": edited})
    with pytest.raises(ValueError, match="'krum' was edited after .* give `make documents`"):
        find_method("krum", None)
    assert find_method("fedavg", None) is METHODS["fedavg"]
