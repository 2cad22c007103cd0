"""Conditions are read whole or refused with a sentence, and leave no trace where there are none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsdg.experiment.conditions import Conditions, parse_conditions
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.method_entries import method_entry
from fedsdg.methods.declared import choices
from fedsdg.parts import declared

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"

ATTACKS = choices("attacks")
FULL = {
    "attack": {"type": "sign-flip", "share": 0.2, "scale": 3},
    "dropout": {"probability": 0.3, "lasting": True},
    "label_noise": {"low": 0.1, "high": 0.5},
    "label_conflict": {"share": 0.4, "classes": 3, "per": "group", "groups": 2},
    "compute": {"fastest": 8, "deadline": 60, "arrivals": 3, "late": "discard"},
    "benchmark_images": 100,
}


def test_all_of_them():
    conditions = parse_conditions(FULL)
    assert conditions.attack.type == "sign-flip" and conditions.attack.parameters == {"scale": 3.0}
    assert (conditions.dropout.probability, conditions.dropout.lasting) == (0.3, True)
    assert (conditions.label_noise.low, conditions.label_noise.high) == (0.1, 0.5)
    compute = conditions.compute
    assert (compute.slowest, compute.fastest, compute.deadline) == (1.0, 8.0, 60.0)
    assert (compute.arrivals, compute.late, compute.max_age) == (3, "discard", 5)
    assert conditions.benchmark_images == 100


@settings(deadline=None)
@given(st.sets(st.sampled_from(sorted(FULL))))
def test_what_is_written_is_read_back_without_what_is_absent(keys):
    conditions = parse_conditions({key: FULL[key] for key in keys})
    plain = conditions.to_dict()
    assert set(plain) == keys and bool(conditions) == bool(keys)
    assert parse_conditions(json.loads(json.dumps(plain))) == conditions
    absent = {key: None for key in FULL if key not in keys}
    assert parse_conditions({**plain, **absent}) == conditions


@pytest.mark.parametrize("kind", ATTACKS)
def test_every_attack_is_read_back_with_its_defaults(kind):
    conditions = parse_conditions({"attack": {"type": kind, "share": 0.4}})
    defaults = {key: parameter.default for key, parameter in ATTACKS[kind].parameters.items()}
    assert conditions.attack.parameters == defaults
    assert parse_conditions(conditions.to_dict()) == conditions


def test_no_conditions():
    assert parse_conditions(None) == parse_conditions({}) == Conditions()
    assert not Conditions() and Conditions().to_dict() == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "conditions is \\[\\], but must be a mapping"),
        ({"atack": {}}, "unknown key 'atack'; did you mean 'attack'"),
        ({"attack": "alie"}, "conditions.attack is 'alie', but must be a mapping"),
        ({"attack": {"share": 0.2}}, "conditions.attack lacks the key 'type': which attack"),
        ({"attack": {"type": "alie"}}, "conditions.attack lacks the key 'share'"),
        ({"attack": {"type": "aile", "share": 0.2}}, "attack 'aile'; did you mean 'alie'"),
        ({"attack": {"type": [], "share": 0.2}}, r"attack.type is \[\], but must be a text"),
        ({"attack": {"type": "alie", "share": 1.2}}, "share is 1.2, but must be at most 1"),
        ({"attack": {"type": "alie", "share": 0.2, "scale": 1}}, "unknown key 'scale'"),
        ({"attack": {"type": "scaling", "share": 0.2, "scale": -1}}, "at least 0"),
        ({"attack": {"type": "scaling", "share": 0.2, "scale": float("inf")}}, "at most"),
        ({"attack": {"type": "scaling", "share": 0.2, "scale": float("nan")}}, "is nan"),
        ({"attack": {"type": "scaling", "share": 0.2, "scale": "1e3"}}, "is the text '1e3'"),
        ({"attack": {"type": "label-flip", "share": 0.2, "to": "any"}}, "one of opposite, next"),
        ({"dropout": {"p": 0.1}}, "conditions.dropout: unknown key 'p'"),
        ({"dropout": {"probability": 1.5}}, "at most 1"),
        ({"dropout": {"lasting": 1}}, "lasting is 1, but must be true or false"),
        ({"dropout": {"lasting": "yes"}}, "lasting is 'yes', but must be true or false"),
        ({"dropout": 3}, "conditions.dropout is 3, but must be a mapping of keys to values"),
        ({"quantisation": {"who": "slowest"}}, "conditions: quantisation.who is slowest, but"),
        ({"label_noise": {"low": 0.5, "high": 0.2}}, "low = 0.5 is above high = 0.2"),
        ({"label_noise": {"high": 1.1}}, "at most 1"),
        ({"compute": {"slowest": 5, "fastest": 2}}, "slowest = 5.0 is above fastest = 2.0"),
        ({"compute": {"local_seconds": 9, "deadline": 5}}, "no update could ever be in time"),
        ({"compute": {"late": "wait"}}, "one of compensate, discard"),
        ({"compute": {"arrivals": 0}}, "at least 1"),
        ({"label_conflict": {"share": 1.2}}, "label_conflict.share is 1.2, but must be at most 1"),
        ({"label_conflict": {"share": -0.1}}, "share is -0.1, but must be at least 0"),
        ({"label_conflict": {"classes": 1}}, "classes is 1, but a cycle needs 2 labels"),
        ({"label_conflict": {"classes": -1}}, "classes is -1, but must be at least 0"),
        ({"feature_shift": {"kind": "noise", "angle": 90}}, "angle is 90, but kind is noise"),
        ({"feature_shift": {"kind": "rotate", "angle": 270}}, "angle is 270, but must be at most"),
        ({"label_conflict": {"classes": 2.5}}, "whole number"),
        ({"label_conflict": {"per": "cohort"}}, "one of client, group"),
        ({"label_conflict": {"per": "group", "groups": 0}}, "groups is 0, but must be at least 1"),
        ({"label_conflict": {"groups": 2}}, "write per: group, or remove groups"),
        ({"label_conflict": {"kind": "invert"}}, "unknown key 'kind'"),
        ({"feature_shift": {"kind": "blur"}}, "one of invert, rotate, noise"),
        ({"feature_shift": {"share": 2}}, "feature_shift.share is 2, but must be at most 1"),
        ({"feature_shift": {"classes": 2}}, "unknown key 'classes'"),
        ({"label_conflict": {}, "feature_shift": {}}, "choose one of them"),
        ({"benchmark_images": 0}, "conditions.benchmark_images is 0, but must be at least 1"),
        ({"benchmark_images": 1.5}, "whole number"),
    ],
)
def test_nonsense_is_named(given, message):
    with pytest.raises(ValueError, match=message):
        parse_conditions(given)


def test_every_condition_and_every_key_of_it_says_what_it_means():
    for name, entry in declared(Conditions).items():
        keys = declared(entry.kind).values() if entry.holds_part else [entry]
        assert entry.meaning and all(key.meaning for key in keys), name


def test_the_place_is_that_of_the_scenario():
    with pytest.raises(ValueError, match="scenarios.slow.conditions.dropout.probability is 2"):
        parse_conditions({"dropout": {"probability": 2}}, "scenarios.slow.conditions")


@pytest.mark.parametrize(
    ("share", "clients", "count"), [(0.2, 20, 4), (0.4, 20, 8), (0, 20, 0), (0.25, 10, 3)]
)
def test_share_of_attackers(share, clients, count):
    attack = parse_conditions({"attack": {"type": "alie", "share": share}}).attack
    assert attack.count(clients) == count


def test_what_so_many_clients_cannot_do():
    def possible(given, clients=20, cohort=5):
        parse_conditions(given).require_possible(clients, cohort)

    possible(FULL)
    with pytest.raises(ValueError, match="share is 0.01, which is none of 20 clients"):
        possible({"attack": {"type": "alie", "share": 0.01}})
    with pytest.raises(ValueError, match="share is 1.0, which is all of 20 clients"):
        possible({"attack": {"type": "alie", "share": 1}})
    with pytest.raises(ValueError, match="arrivals is 6, but a round has only 5 clients"):
        possible({"compute": {"arrivals": 6}})


@pytest.mark.parametrize(
    ("share", "clients", "count"), [(0, 20, 0), (0.25, 10, 3), (0.5, 20, 10), (1, 20, 20)]
)
def test_share_of_clients_that_differ(share, clients, count):
    conditions = parse_conditions({"label_conflict": {"share": share}})
    assert conditions.label_conflict.count(clients) == count
    conditions.require_possible(clients, 5)
    assert bool(conditions.remarks(clients)) == (count == 0)


def test_what_differences_cannot_be_or_are_worth_a_remark():
    grouped = {"feature_shift": {"share": 0.2, "per": "group", "groups": 5}}
    with pytest.raises(ValueError, match="groups is 5, but only 4 of 20 clients differ; lower it"):
        parse_conditions(grouped).require_possible(20, 5)
    parse_conditions(grouped).require_possible(30, 5)
    nobody = parse_conditions({"label_conflict": {"share": 0.01}})
    (remark,) = nobody.remarks(20)
    assert remark.startswith("conditions.label_conflict.share is 0.01, which is none of 20")
    (remark,) = parse_conditions({"label_conflict": {}, "label_noise": {}}).remarks(20)
    assert "the label conflict comes first" in remark
    conflict = parse_conditions({"label_conflict": {"classes": 11}}).label_conflict
    with pytest.raises(ValueError, match="classes is 11, but digits has only 10 classes; lower"):
        conflict.require_classes(10, "digits")
    conflict.require_classes(11, "letters")


def test_reading_needs_no_torch():
    program = (
        "import sys; from fedsdg.experiment.conditions import parse_conditions;"
        "parse_conditions({'attack': {'type': 'alie', 'share': 0.2}});"
        "assert 'torch' not in sys.modules"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_an_angle_that_is_drawn_leaves_runs_the_hash_they_had():
    drawn = parse_conditions({"feature_shift": {"kind": "rotate", "angle": None}})
    earlier = {"share": 0.5, "per": "client", "groups": 1, "kind": "rotate"}
    assert drawn.to_dict() == {"feature_shift": earlier}
    fixed = parse_conditions({"feature_shift": {"kind": "rotate", "angle": 90}})
    assert fixed.to_dict() == {"feature_shift": {**earlier, "angle": 90.0}}
    assert parse_conditions(fixed.to_dict()) == fixed


# --- In configs -----------------------------------------------------------------------------------


SKEW = "dirichlet~1.0"


def raw_config(**federation):
    raw = yaml.safe_load(CONFIG.read_text())
    raw["federation"] |= {"clients": 9, "clients_per_round": 9, "rounds": 4} | federation
    return raw


def test_a_run_without_conditions_says_nothing_of_them():
    run = parse_config(raw_config()).run("digits", SKEW, method_entry("fedavg"), 0)
    assert "conditions" not in run.to_dict()
    raw = raw_config() | {"conditions": {}}
    assert parse_config(raw).run("digits", SKEW, method_entry("fedavg"), 0).hash == run.hash


def test_scenarios_multiply_the_grid_and_change_what_they_name():
    raw = raw_config() | {
        "skews": [SKEW, "iid"],
        "seeds": [0],
        "methods": ["fedavg", {"type": "krum", "f": 1}],
        "scenarios": {
            "plain": {},
            "flip~0.2": {
                "conditions": {"attack": {"type": "sign-flip", "share": 0.2}},
                "parameters": {"f": 2},
                "federation": {"rounds": 7},
            },
        },
    }
    config = parse_config(raw)
    assert config.settings == (f"{SKEW}@plain", f"{SKEW}@flip~0.2", "iid@plain", "iid@flip~0.2")
    assert "digits/clients~9/iid@flip~0.2/krum/seed~0" in config.run_folders()
    krum = config.methods[1]
    hard = config.run("digits", "iid@flip~0.2", krum, 0)
    easy = config.run("digits", "iid@plain", krum, 0)
    assert (hard.skew, hard.parameters["f"], hard.federation.rounds) == ("iid", 2, 7)
    assert (easy.skew, easy.parameters["f"], easy.federation.rounds) == ("iid", 1, 4)
    assert hard.conditions.attack.count(10) == 2 and not easy.conditions
    assert config.identity("digits", "iid@flip~0.2", krum, 0)["scenario"] == "flip~0.2"


@pytest.mark.parametrize(
    "scenario, sentence",
    [
        ({"x": {"conditons": {}}}, "scenarios.x: unknown key 'conditons'; did you mean 'condi"),
        ({"a@b": {}}, "the name 'a@b' must be made of letters"),
        ({"x": {"federation": {"clients": 3}}}, "scenarios share their clients"),
        ({"x": {"parameters": {"gamma": 1}}}, "scenarios.x.parameters: no method has a parameter"),
        (
            {"x": {"conditions": {"compute": {"arrivals": 40}}}},
            "conditions.compute.arrivals is 40, but a round has only 9 clients",
        ),
    ],
)
def test_a_scenario_that_cannot_be_is_refused_by_its_place(scenario, sentence):
    raw = raw_config() | {"methods": ["fedavg", "krum"], "scenarios": scenario}
    with pytest.raises(ValueError, match=sentence):
        parse_config(raw)


def test_what_leaves_too_few_or_too_many_clients_is_refused():
    for federation, message in (
        ({"clients_per_round": 4, "held_out": 0.7}, "held_out is 0.7, which leaves 3 of 9 clie"),
        (
            {"clients": 12, "clients_per_round": 11, "shapley": True},
            "10 clients, and a round has 11",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            parse_config(raw_config(**federation))
    estimated = raw_config(clients=12, clients_per_round=11, shapley="estimated")
    assert parse_config(estimated).federation.shapley == "estimated"
