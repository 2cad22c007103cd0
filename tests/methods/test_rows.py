"""The table of methods: what holds for every row, and what a row refuses."""

import pytest

from fedsdg.aggregation.rules.krum import Krum
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.types import Rule
from fedsdg.config.config import Config
from fedsdg.config.layers import merged
from fedsdg.federation.personalisation import DualPath, PrivateHead
from fedsdg.federation.terms import ControlVariates, Proximal
from fedsdg.methods.families import FAMILIES, METHODS
from fedsdg.methods.method import Method
from fedsdg.parts import parameters

FEDSDG = {name for name in METHODS if name.startswith("fedsdg")}
WITH_ADAPTERS = {"gated-head", "gated-head-train", "fed-rod"} | {*FAMILIES["Within LoRA"]}
ONE_MODEL = {
    *(*FAMILIES["Averaging"], *FAMILIES["Robust rules"], "cgsv", "focus", "ffa-lora", "rolora"),
    *("data-sharing", "centralised"),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_row_is_complete(name):
    row = METHODS[name]
    assert row.title and row.source and row.formula
    for part in row.parts:
        assert type(part).__doc__
    for key, info in row.parameters.items():
        assert info.description, key


@pytest.mark.parametrize("name", METHODS)
def test_the_defaults_of_a_row_are_its_values(name):
    row = METHODS[name]
    defaults = {key: info.default for key, info in row.parameters.items()}
    assert row.with_values(defaults).parts == row.parts
    assert not set(row.fixed) & set(row.parameters)
    assert set(parameters(*row.parts)) == {*row.fixed, *row.parameters}


def test_families_divide_the_methods_in_the_order_of_tables():
    listed = [name for rows in FAMILIES.values() for name in rows]
    assert listed == list(METHODS) and len(listed) == len(set(listed)) == 45
    titles = [row.title for row in METHODS.values()]
    assert len(titles) == len(set(titles))


def test_what_follows_from_parts():
    assert {name for name, row in METHODS.items() if row.undecayed} == FEDSDG
    assert {name for name, row in METHODS.items() if row.needs_adapters} == FEDSDG | WITH_ADAPTERS
    assert {name for name, row in METHODS.items() if not row.personal} == ONE_MODEL


def test_values_reach_the_parts_that_own_them():
    row = METHODS["fedsdg+screened"].with_values({"lambda1": 0.5, "temperature": 0.1, "strikes": 3})
    assert row.personalisation.lambda1 == 0.5
    assert row.rule.strikes == 3 and row.rule.inner.temperature == 0.1
    with pytest.raises(ValueError, match="must be at least 0"):
        METHODS["fedprox"].with_values({"mu": -1})
    with pytest.raises(ValueError, match="no A_p"):
        METHODS["fedsdg"].with_values(
            {"private_norm": "residual", "private_subspace": "shared-a"},
        )


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Method("X", rule=Krum), r"its rule is the class Krum; write Krum\(\)"),
        (lambda: Method("X", rule=Proximal()), "is a Proximal, but must be a Rule"),
        (lambda: Method("X", objective=(Mean(),)), "is a Mean, but must be a Term"),
        (lambda: Method("X", rule=Rule()), "defines no `plan`"),
        (lambda: Method("X", objective=(ControlVariates(),)), 'needs SGD; add optimiser="sgd"'),
        (lambda: Method("X", fixed=("mu",)), "fixes mu, which none of its parts has"),
        (
            lambda: Method("X", personalisation=DualPath(), objective=(DualTerm(),)).parameters,
            "both DualTerm and DualPath own a parameter 'lambda1'; rename",
        ),
    ],
)
def test_a_row_that_cannot_work_is_one_sentence(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


class DualTerm(Proximal):
    """A term with a parameter that another part has."""

    lambda1: float = 1.0
    "the same name"


def test_facts_of_variants_follow_their_method():
    entries = [
        {"type": "krum", "name": "krum-2"},
        "krum",
        {"type": "fedavg", "name": "fedavg-x"},
        {"type": "fedprox", "name": "mine"},
        {"type": "clustered", "name": "known", "assignment": "known"},
        "centralised",
    ]
    config = Config.read({**merged(), "methods": entries})
    facts = {entry.label: entry.facts for entry in config.methods}
    titles = [facts[label]["title"] for label in ("krum-2", "fedavg-x", "mine")]
    assert titles == ["Krum (2)", "FedAvg (samples, x)", "mine"]
    assert facts["krum-2"]["family"] == "Robust rules"
    assert facts["krum-2"]["order"] == facts["krum"]["order"] + 1
    assert [label for label, fact in facts.items() if fact["oracle"]] == ["known", "centralised"]
    assert not facts["fedavg-x"]["personal"] and facts["known"]["personal"]


def test_a_head_of_its_own_needs_no_adapters():
    assert not Method("X", personalisation=PrivateHead()).needs_adapters
