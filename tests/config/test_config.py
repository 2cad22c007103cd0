"""Configs: their runs, what is refused, and what an address depends on."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from fedsdg.config import plugins, run
from fedsdg.config.config import Config
from fedsdg.config.entries import read_entry
from fedsdg.config.layers import load, merged
from fedsdg.config.reference import config_page, methods_page
from fedsdg.config.scenarios import overlay
from fedsdg.config.search import Interval
from fedsdg.config.sections import CHECKPOINT_FILES, Federation
from fedsdg.errors import ConfigError
from fedsdg.federation.conditions.attack import Attack
from fedsdg.federation.losses import Loss
from fedsdg.federation.optimisers import Optimiser
from fedsdg.parts import Part, parameters, plain

ROOT = Path(__file__).parents[2]
CONFIGS = sorted({*(ROOT / "config").rglob("*.yaml")} - {ROOT / "config/record.yaml"})
DEFAULTS = ROOT / "tests/golden/defaults.json"
VERSIONS = {"torch": "2"}


@pytest.fixture(scope="module")
def base():
    return merged()


def changed(base, place, value):
    raw = copy.deepcopy(base)
    keys = place.split(".")
    below = raw
    for key in keys[:-1]:
        below = below.setdefault(key, {})
    below[keys[-1]] = value
    return raw


def first_run(raw):
    return next(Config.read(raw).runs())


def key(raw):
    return first_run(raw).key("partition", "backbone", VERSIONS)


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_every_config_of_the_package_is_accepted(file):
    below = ["needs"] if file.stem == "reproduced" else []
    config = load([*below, file])
    assert config.settings
    labels = [entry.label for entry in config.methods if entry.label not in config.untuned]
    for label in labels:
        assert config.run(
            next(iter(config.sources)), config.settings[0], config.method(label), 0
        ).training.kernel in ("compiled", "torch")


def defaults():
    found = {}
    for section in ("federation", "partition", "training", "adapters", "conditions"):
        model = type(getattr(load(), section))
        for name, info in model.model_fields.items():
            value = info.default
            named = isinstance(value, Part) and value.registered_as
            found[f"{section}.{name}"] = named or plain(value)
            for part in get_args(info.annotation):
                for field, inner in getattr(part, "model_fields", {}).items():
                    if not inner.is_required():
                        found[f"{section}.{name}.{field}"] = plain(inner.default)
    for kind, parts in (("optimiser", Optimiser), ("loss", Loss), ("attack", Attack)):
        for name, part in parts.registry.items():
            for field, info in part.model_fields.items():
                found[f"{kind} {name}.{field}"] = plain(info.default)
    for name, row in plugins.METHODS.items():
        for field, info in row.parameters.items():
            found[f"{name}.{field}"] = plain(info.default)
        known = parameters(*row.parts)
        fixed = {field: known[field].default for field in row.fixed}
        for field, value in {**fixed, **row.training, "optimiser": row.optimiser}.items():
            found[f"{name}, prescribed {field}"] = plain(value)
    return found


def test_no_default_has_moved():
    known = json.loads(DEFAULTS.read_text())
    assert known == defaults()


def test_what_is_laid_over_a_config_under_a_scenario(base):
    raw = {
        **base,
        "skews": ["iid"],
        "conditions": {"dropout": {"probability": 0.3}},
        "methods": ["fedprox", "krum"],
        "scenarios": {
            "plain": None,
            "late": {"conditions": {"dropout": {"lasting": True}}, "parameters": {"mu": 2}},
            "gone": {"conditions": {"dropout": None}, "training": {"epochs": 7}},
        },
    }
    config = Config.read(raw)
    assert config.settings == ("iid@late", "iid@gone")
    late, gone = (config.run("digits", one, config.method("fedprox"), 1) for one in config.settings)
    assert late.conditions.dropout.model_dump() == {"probability": 0.3, "lasting": True}
    assert (late.method.parameters["mu"], gone.method.parameters["mu"]) == (2.0, 0.1)
    assert (gone.conditions.dropout, gone.training.epochs) == (None, 7)
    assert late.folder == "digits/clients~20/iid@late/fedprox/seed~1"
    assert len(list(config.runs())) == 2 * 2 * len(config.seeds)


def test_an_address_holds_what_changes_numbers_and_nothing_else(base, monkeypatch):
    raw = {**base, "methods": [{"type": "fedprox"}], "seeds": [1], "skews": ["iid"]}
    first = key(raw)
    same = [
        changed(raw, "methods", [{"type": "fedprox", "name": "other", "mu": 0.1}]),
        changed(raw, "experiment", "other"),
        changed(raw, "checkpoint_seconds", 1),
        changed(raw, "partition_seed", 1),
        changed(raw, "training.loss", {"type": "cross-entropy", "label_smoothing": 0}),
        changed(raw, "scenarios", {"one": {}}),
        changed(raw, "scenarios", {"one": {"partition_seed": 1}}),
    ]
    assert {key(one) for one in same} == {first}
    others = [
        changed(raw, "methods", [{"type": "fedprox", "mu": 0.2}]),
        changed(raw, "methods", ["fedavg"]),
        changed(raw, "partition_seed", 2),
        changed(raw, "seeds", [2]),
        changed(raw, "training.kernel", "torch"),
        changed(raw, "training.optimiser", {"type": "sgd", "momentum": 0.5}),
        changed(raw, "federation.evaluate", "validation"),
        changed(raw, "conditions", {"attack": {"type": "sign-flip", "share": 0.2}}),
        changed(raw, "adapters.rank", 4),
    ]
    keys = {key(one) for one in others}
    assert key(changed(raw, "scenarios", {"one": {"partition_seed": 2}})) in keys
    assert len(keys) == len(others)
    assert first not in keys
    made = first_run(raw)
    assert made.key("other", "backbone", VERSIONS) != first
    assert made.key("partition", "other", VERSIONS) != first
    assert made.key("partition", "backbone", {"torch": "3"}) != first
    for module, name, value in (
        (plugins, "hashes", lambda *_: ["a plugin's"]),
        (run, "NUMERICS", run.NUMERICS + 1),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, value)
            assert key(raw) != first
    row = replace(plugins.METHODS["fedprox"], numerics=1)
    monkeypatch.setitem(plugins.METHODS, "fedprox", row)
    assert key(raw) != first


def test_an_address_holds_the_checkpoint_that_adapters_start_from(base, tmp_path):
    for name in CHECKPOINT_FILES:
        (tmp_path / name).write_text("1")
    raw = changed(base, "adapters.start", str(tmp_path))
    first = key(raw)
    assert first != key(base)
    (tmp_path / CHECKPOINT_FILES[1]).write_text("2")
    assert key(raw) != first
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in CHECKPOINT_FILES:
        (elsewhere / name).write_text("1")
    assert key(changed(base, "adapters.start", str(elsewhere))) == first
    complete = first_run(changed(base, "adapters.start", str(elsewhere))).complete()
    json.dumps(complete)
    assert len(complete["adapters"]["start"]) == 64


def test_a_run_is_complete_in_its_records(base):
    conditions = {"attack": {"type": "sign-flip", "share": 0.2}, "dropout": {"probability": 0.1}}
    made = first_run({**base, "conditions": conditions, "methods": ["krum"], "seeds": [1]})
    complete = made.complete()
    assert complete["parameters"] == {"f": 1}
    assert complete["training"]["optimiser"] == "adam" and complete["training"]["epochs"] == 2
    assert complete["conditions"]["attack"]["type"] == "sign-flip"
    assert complete["conditions"]["attack"]["share"] == 0.2
    assert (complete["seed"], complete["method"], complete["dataset"]) == (1, "krum", "digits")
    assert "partition_seed" not in complete and "null" not in json.dumps(complete)
    other = first_run({**base, "partition_seed": 7, "training": {"optimiser": "sgd"}})
    assert other.complete()["partition_seed"] == other.overrides()["partition_seed"] == 7
    decayed = {"type": "sgd", "momentum": 0.5}
    made = first_run({**base, "methods": ["fedavg"], "training": {"optimiser": decayed}})
    assert made.complete()["training"]["optimiser"] == decayed


def test_rows_and_entries_lie_over_the_training_of_the_config(base):
    decayed = {"type": "adamw", "weight_decay": 0.1}
    raw = changed(base, "training.optimiser", decayed)
    raw["methods"] = ["scaffold", "fedsgd", "fedsdg", {"type": "fedavg", "eta_g": 0.5}]
    config = Config.read(raw)
    scaffold, fedsgd, fedsdg, fedavg = (
        config.run("digits", config.skews[0], entry, 0).training for entry in config.methods
    )
    assert scaffold.optimiser.registered_as == "sgd"
    assert (fedsgd.epochs, fedsgd.batch_size) == (1, None)
    assert fedsdg.optimiser.weight_decay == 0.0
    assert (fedavg.eta_g, fedavg.optimiser.overrides()) == (0.5, decayed)
    entries = [
        {"type": "fedsdg-official", "eta_m": 0.7},
        {"type": "fedavg", "optimiser": decayed},
        {"type": "krum", "optimiser": "sgd"},
    ]
    config = Config.read({**base, "methods": entries})
    official, decays, krum = (
        config.run("digits", config.skews[0], entry, 0).training for entry in config.methods
    )
    assert (official.eta_m, official.epochs) == (0.7, 5)
    assert decays.optimiser.weight_decay == 0.1
    assert krum.optimiser.registered_as == "sgd"


def test_auto_is_the_compiled_pass_if_it_is_known_to_be_possible(base):
    def kernel(**training):
        return first_run({**base, "training": training, "methods": ["fedavg"]}).training.kernel

    assert kernel(kernel="auto") == kernel(kernel="compiled") == "compiled"
    assert kernel(kernel="torch") == "torch"
    assert kernel(kernel="auto", precision="bfloat16") == "torch"
    timm = {"vit": {"source": "timm", "timm_name": "vit_tiny_patch16_224"}}
    raw = {**base, "backbones": timm, "backbone": "vit", "methods": ["fedavg"]}
    assert first_run({**raw, "training": {"kernel": "auto"}}).training.kernel == "torch"
    assert first_run({**raw, "training": {"kernel": "compiled"}}).training.kernel == "compiled"


def test_clients_that_never_train_are_rounded_half_up():
    sections = [Federation(clients=10, held_out=share) for share in (0.04, 0.05, 0.25)]
    assert [section.kept_out for section in sections] == [0, 1, 3]


def test_what_a_search_tries_is_read_by_its_parameters(base):
    space = {
        "fedsdg": {"eta_m": ["bound", 1, "log"], "lambda1": [0, 1, "linear"], "eta_g": None},
        "krum": {"f": [1, 3, "linear"]},
        "ditto": {"strength": [0.1, 1]},
    }
    config = Config.read(changed(base, "search", {"seeds": [100], "space": space}))
    assert config.space["fedsdg"]["eta_m"] == Interval(None, 1.0, True)
    assert config.space["fedsdg"]["lambda1"] == Interval(0.0, 1.0, False)
    assert config.space["krum"]["f"] == Interval(1, 3, False, whole=True)
    assert config.space["ditto"]["strength"] == (0.1, 1.0)
    assert "eta_g" not in config.space["fedsdg"]


def test_tuned_values_lie_over_entries_and_lacking_ones_are_named(base, tmp_path):
    file = tmp_path / "tuned.yaml"
    file.write_text("fedavg: {eta_g: 0.25}\n")
    entries = [{"type": "fedavg", "eta_g": 0.1}, "fedprox"]
    raw = {**base, "methods": entries, "tuned": str(file)}
    config = Config.read(raw)
    assert config.run("digits", "iid", config.method("fedavg"), 0).training.eta_g == 0.25
    with pytest.raises(ConfigError, match=r"fedprox has no tuned values .* --only fedprox"):
        config.run("digits", "iid", config.method("fedprox"), 0)
    with pytest.raises(ConfigError, match=r"fedprox has no tuned values in .*tuned\.yaml;"):
        config.including(None, None, "iid").run("digits", "iid", config.method("fedprox"), 0)
    # A row whose search is not finished has no values yet, whatever its entry says.
    file.write_text("fedavg: null\n")
    assert Config.read(raw).untuned == ["fedavg", "fedprox"]
    file.write_text("fedavg: 0.25\n")
    with pytest.raises(ConfigError, match=r"tuned names .*, in which 0\.25 stands where a mapping"):
        Config.read(raw)
    file.write_text("fedavg: {eta_q: 0.25}\n")
    with pytest.raises(ConfigError, match=r"fedavg has an unknown key 'eta_q'; did you mean"):
        Config.read(raw)


def test_a_variant_that_is_not_searched_has_the_values_of_its_method(base, tmp_path):
    file = tmp_path / "tuned.yaml"
    variant = {"type": "fedsdg", "name": "fedsdg-softmax", "transform": "softmax"}
    rated = {"type": "fedsdg", "name": "rated", "eta_g": 0.5}
    raw = {**base, "methods": ["fedsdg", variant, rated], "tuned": str(file)}

    def lambda1(space):
        config = Config.read({**raw, "search": {"space": space}})
        lambdas = {entry.label: entry.parameters["lambda1"] for entry in config.methods}
        return {label: x for label, x in lambdas.items() if label not in config.untuned}

    file.write_text("fedsdg: {eta_g: 0.25, lambda1: 0.125}\n")
    default = read_entry("fedsdg").parameters["lambda1"]
    assert lambda1({}) == {"fedsdg": 0.125, "fedsdg-softmax": 0.125, "rated": default}
    # Where it is searched, it has values of its own or none yet.
    searched = {"fedsdg-softmax": {"lambda1": [0.1, 1.0, "log"]}}
    assert lambda1(searched) == {"fedsdg": 0.125, "rated": default}
    file.write_text("fedsdg: {eta_g: 0.25, lambda1: 0.125}\nfedsdg-softmax: null\n")
    assert lambda1({}) == {"fedsdg": 0.125, "rated": default}


def test_a_grid_grows_by_what_it_lacks(base):
    config = load()
    grown = config.including("apfl", "mnist", "dirichlet~0.05")
    assert grown.method("apfl").label == "apfl"
    assert (grown.datasets[-1], grown.skews[-1]) == ("mnist", "dirichlet~0.05")
    assert grown.partition.retries == 20_000
    patient = load(settings=["partition.retries=30_000"]).including(None, None, "iid")
    assert patient.partition.retries == 30_000
    assert config.including("fedavg", "digits", config.skews[0]) is config
    for arguments, sentence in (
        (("fedavgg", None, None), "did you mean 'fedavg'?"),
        ((None, "digit", None), "did you mean 'digits'?"),
        ((None, None, "iid@half"), "must be one of iid"),
    ):
        with pytest.raises(ConfigError) as caught:
            config.including(*arguments)
        assert sentence in str(caught.value)


def test_overlay_merges_mappings_and_replaces_all_else():
    assert overlay({"a": {"b": [1], "c": 2}}, {"a": {"b": [3]}, "d": 4}) == {
        "a": {"b": [3], "c": 2},
        "d": 4,
    }


def test_the_pages_name_every_key_and_method():
    page = config_page()
    for model in (Config, type(load().training), type(load().federation)):
        for name, info in model.model_fields.items():
            assert f"`{name}`" in page
            assert info.description
    assert all(f"`{name}`" in methods_page() for name in plugins.METHODS)
    schema = Config.model_json_schema()
    assert set(schema["required"]) >= {"experiment", "methods", "seeds"}
    json.dumps(schema)


def test_the_schema_for_editors_accepts_every_config():
    validator = pytest.importorskip("jsonschema").Draft202012Validator(Config.model_json_schema())
    for file in CONFIGS:
        assert not [error.message for error in validator.iter_errors(merged([file]))], file
    wrong = {**merged(), "federation": {"client": 3}, "seeds": 0}
    assert len(list(validator.iter_errors(wrong))) == 2


def test_the_committed_pages_are_those_of_the_parts():
    docs = Path(__file__).parents[2] / "docs"
    remedy = "run python -m fedsdg.config.reference"
    assert (docs / "config.md").read_text() == config_page(), remedy
    assert (docs / "methods.md").read_text() == methods_page(), remedy
