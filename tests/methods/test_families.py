"""The rows of real parts say what the table by references says; both until the table goes."""

from importlib import import_module

import pytest
from fedsdg.methods.table import METHODS

from fedsdg.experiment.conditions import ATTACKS
from fedsdg.methods import choices, local_parts

FAMILIES = (
    "fedsdg",
    "averaging",
    "robust",
    "personalised",
    "lora",
    "clustered",
    "contribution",
    "references",
)
ROWS = {
    name: row
    for family in FAMILIES
    for name, row in import_module(f"fedsdg.methods.{family}").ROWS.items()
}
WORDS = ("title", "formula", "source", "up", "down", "client_cost", "server_cost")
CHOICES = ("optimiser", "undecayed", "needs_adapters", "heads_apart", "training")


def test_every_method_has_one_row():
    assert ROWS.keys() == METHODS.keys()
    assert len(ROWS) == sum(len(import_module(f"fedsdg.methods.{f}").ROWS) for f in FAMILIES)


@pytest.mark.parametrize("name", METHODS)
def test_a_row_is_made_of_the_same_parts(name):
    row, former = ROWS[name], METHODS[name]
    values = former.complete({})
    assert repr(row.rule) == repr(former.rule.build(values))
    assert repr(row.personalisation) == repr(former.personalisation.build(values))
    assert list(map(repr, row.objective)) == [repr(t.build(values)) for t in former.objective]
    for part in ("stopping", "pooling"):
        if (reference := getattr(former, part)) is not None:
            assert repr(getattr(row, part)) == repr(reference.build(values))
    for word in (*WORDS, *CHOICES):
        assert getattr(row, word) == getattr(former, word), word


@pytest.mark.parametrize("name", METHODS)
def test_a_row_lets_the_same_parameters_be_set(name):
    known, former = ROWS[name].parameters, METHODS[name].parameters
    assert known.keys() == former.keys()
    for key, one in former.items():
        assert known[key].default == one.default
        assert (known[key].range.least, known[key].range.most) == (one.minimum, one.maximum)
        assert tuple(known[key].choices or ()) == tuple(one.choices)
        assert known[key].meaning == one.meaning and known[key].optional == one.optional
    assert repr(ROWS[name].with_values({k: d.default for k, d in known.items()})) == repr(
        ROWS[name]
    )


FORMER = {
    "OPTIMISERS": local_parts.OPTIMISERS,
    "LOSSES": local_parts.LOSSES,
    "ATTACKS": ATTACKS,
}


@pytest.mark.parametrize("table", FORMER)
def test_what_else_is_chosen_is_the_same(table):
    rows = getattr(choices, table)
    assert list(rows) == list(FORMER[table])
    for name, former in FORMER[table].items():
        row = rows[name]
        assert (row.title, row.source) == (former.title, former.source)
        values = {key: one.default for key, one in former.parameters.items()}
        assert repr(row.part) == repr(former.part.build(values))
        assert row.parameters.keys() == former.parameters.keys()
        for key, one in former.parameters.items():
            known = row.parameters[key]
            assert (known.default, known.meaning) == (one.default, one.meaning)
            assert (known.range.least, known.range.most) == (one.minimum, one.maximum)
