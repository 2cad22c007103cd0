"""The closed schema: what is wrong in a config is named before anything runs."""

import copy
import json
import re
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator
from snakemake.exceptions import WorkflowError
from snakemake.utils import update_config, validate

from fedsdg.data.partition import PartitionSettings
from fedsdg.experiment.conditions import Conditions, parse_conditions
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.schema import value_of
from fedsdg.experiment.sections import (
    AdaptersConfig,
    FederationConfig,
    TrainingConfig,
)
from fedsdg.methods.declared import methods
from fedsdg.parts import declared, plain

from .conftest import jobs_of

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "workflow/schemas/config.schema.json"
DEFAULT = yaml.safe_load((ROOT / "config/config.yaml").read_text())
SKEWS = ["dirichlet~0.1", "dirichlet~10", "dirichlet~.5", "classes~2", "quantity~0.5"]
SKEWS += ["column~writer", "iid"]


def set_at(config: dict, place: str, value: object) -> dict:
    """A copy of the config in which one place, written with dots, has another value."""
    changed = copy.deepcopy(config)
    *folders, name = place.split(".")
    target = changed
    for folder in folders:
        target = target[folder]
    target[name] = value
    return changed


def judge(config: dict, named: str | None) -> None:
    """Fail unless the schema takes a config, or refuses it with these words."""
    if named is None:
        validate(config, str(SCHEMA))
    else:
        with pytest.raises(WorkflowError, match=re.escape(named)):
            validate(config, str(SCHEMA))


def merged(files: list[Path]) -> dict:
    """As Snakemake lays config files over one another."""
    config: dict = {}
    for file in files:
        update_config(config, yaml.safe_load(file.read_text()))
    return config


def test_the_configs_of_the_repository_are_valid_to_workflow_and_package():
    validate(copy.deepcopy(DEFAULT), str(SCHEMA))
    folder = ROOT / "config"
    for overlay in sorted(folder.rglob("*.yaml")):
        own = yaml.safe_load(overlay.read_text())
        below = [folder / "config.yaml", *(overlay.parent / name for name in own.get("over", []))]
        config = load_config([overlay])
        validate(merged([*below, overlay]), str(SCHEMA))
        # A file that names no experiment is laid over others and keeps their name.
        named = "experiment" in own and overlay.stem != "config"
        assert config.experiment == (overlay.stem if named else load_config(below).experiment)
    smoke = yaml.safe_load((ROOT / "config/smoke.yaml").read_text())
    assert set(smoke) <= set(DEFAULT)


def test_reproducing_runs_every_method_and_every_kind_of_condition():
    made = re.search(r"^SMALL = (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    files = ["config", *made[1].split()]
    configs = [load_config([ROOT / "config/config.yaml", ROOT / f"config/{f}.yaml"]) for f in files]
    assert {method.type for config in configs for method in config.methods} == set(methods())
    met = {
        name
        for config in configs
        for setting in config.settings
        for name in config.scenario(setting).conditions.to_dict()
    }
    assert met >= set(declared(Conditions))


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        ("methods", ["fedsdgg"], "'fedsdgg' is not one of"),
        ("methods", [{"type": "fedsdgg"}], "'fedsdgg' is not one of"),
        ("methods", [{"type": "fedprox", "nu": 1}], "'nu' was unexpected"),
        ("methods", [{"mu": 1}], "'type' is a required property"),
        ("methods", [{"type": "fedprox", "mu": "0.1"}], "'0.1' is not of type 'number'"),
        ("methods", [{"type": "fedsdg", "name": "a/b"}], "'a/b' does not match"),
        ("methods", [], "[] should be non-empty"),
        ("methods", [{"type": "fedprox-inexact", "gamma": [0.9, 0.5]}], None),
        ("methods", [{"type": "fedprox-inexact", "gamma": {"low": 0.5, "high": 0.9}}], None),
        (
            "methods",
            [{"type": "fedprox-inexact", "gamma": {"low": 0.5}}],
            "'high' is a required property",
        ),
        (
            "methods",
            [{"type": "fedprox-inexact", "gamma": [0.9, 1.5]}],
            "1.5 is greater than the maximum",
        ),
        ("methods", [{"type": "fedprox-inexact", "gamma": []}], "[] should be non-empty"),
        ("methods", [{"type": "fedprox-inexact", "gamma": 0.5}], "0.5 is not of type 'array'"),
        ("datasets", ["imagenet"], "'imagenet' is not one of"),
        ("datasets", "digits", "'digits' is not of type 'array'"),
        ("skews", SKEWS, None),
        ("skews", ["dirichlet~0.00"], "'dirichlet~0.00' does not match"),
        ("skews", ["dirichlet~1e-1"], "'dirichlet~1e-1' does not match"),
        ("skews", ["classes~0"], "'classes~0' does not match"),
        ("skews", ["mixed~0.5~0.1"], "'mixed~0.5~0.1' does not match"),
        ("skews", ["quantity~0.0"], "'quantity~0.0' does not match"),
        ("skews", [0.1], "0.1 is not of type 'string'"),
        ("seeds", [0, 0], "has non-unique elements"),
        ("seeds", [-1], "-1 is less than the minimum"),
        ("rouds", 20, "'rouds' was unexpected"),
        ("training.epoch", 2, "'epoch' was unexpected"),
        ("training.eta_g", "1e-4", "'1e-4' is not of type 'number'"),
        ("training.batch_size", 1.5, "1.5 is not of type 'integer'"),
        ("federation.clients", 0, "0 is less than the minimum"),
        ("checkpoint_seconds", -1, "-1 is less than the minimum"),
        ("partition.scheme", "per-class", "'scheme' was unexpected"),
        ("adapters.targets", "all", "'all' is not one of"),
        ("backbones.letters.source", "random", "'random' is not one of"),
        ("backbones.letters.deph", 6, "'deph' was unexpected"),
        ("search.space.a/b", {"mu": [1]}, "'a/b' does not match"),
        ("search.space.fedsdg", {"mu": []}, "[] should be non-empty"),
        ("search.trials", 0, "0 is less than the minimum"),
        ("search.trials", "two", "'two-stage' was expected"),
        ("tuned", 3, "3 is not of type 'string', 'array', 'null'"),
        ("experiment", "../elsewhere", "'../elsewhere' does not match"),
    ],
)
def test_what_is_wrong_is_named(place, value, named):
    judge(set_at(DEFAULT, place, value), named)


@pytest.mark.parametrize("section", ["experiment", "methods", "federation", "backbones"])
def test_a_missing_section_is_named(section):
    lacking = {key: value for key, value in DEFAULT.items() if key != section}
    with pytest.raises(WorkflowError, match=f"'{section}' is a required property"):
        validate(lacking, str(SCHEMA))


@pytest.mark.slow
def test_what_methods_cannot_do_is_said_before_any_job(project):
    """By the command that asks their parts, for which a stand-in answers here."""
    asked = ("--cores", "1", "--configfile", "config/smoke.yaml")
    refused = project.snakemake(*asked, FAILING="check")
    assert refused.returncode != 0
    assert "error: methods: krum: too few" in refused.stdout
    assert "the config cannot be run, as said above" in refused.stdout
    assert not (project.folder / "calls.jsonl").exists() and "Finished job" not in refused.stdout


def test_a_file_without_those_it_is_laid_over_is_refused_and_with_them_planned(project):
    (project.folder / "low.yaml").write_text("seeds: [1]\n")
    (project.folder / "high.yaml").write_text("over: [low.yaml]\n")
    asked = ("-n", "--cores", "1", "--configfile")
    refused = project.snakemake(*asked, "high.yaml")
    assert refused.returncode != 0
    assert "high.yaml is laid over low.yaml; name that file before it, or call" in refused.stdout
    assert "fedsdg reproduce --config high" in refused.stdout
    assert jobs_of(project.snakemake(*asked, "low.yaml", "high.yaml"))["partition_clients"] == 3


def test_snakemake_refuses_before_it_plans_anything(project):
    (project.folder / "wrong.yaml").write_text("methods: [fedsdgg]\n")
    refused = project.snakemake("--cores", "1", "--configfile", "wrong.yaml")
    assert refused.returncode != 0
    assert "unknown method 'fedsdgg'; did you mean 'fedsdg'?" in refused.stdout
    assert not (project.folder / "results").exists()
    assert not (project.folder / ".fedsdg").exists()


def test_a_table_that_is_not_there_is_named_before_anything_is_trained(project):
    (project.folder / "wrong.yaml").write_text("tables: [main, megabyte]\n")
    refused = project.snakemake("--cores", "1", "--configfile", "wrong.yaml")
    assert refused.returncode != 0
    assert "'megabyte'; did you mean 'megabytes'?" in refused.stdout
    assert not (project.folder / "results").exists()


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ("clipped", None),
        ({"type": "clipped", "bound": 2, "eta_g": 0.1}, None),
        ({"type": "fedprox", "mu": 1}, None),
        ({"type": "fedprox", "nu": 1}, "'nu' was unexpected"),
        ({"type": "clipped", "eta_g": "1e-4"}, "'1e-4' is not of type 'number'"),
        ({"type": "clipped", "name": "a/b"}, "'a/b' does not match"),
        ({"bound": 2}, "'type' is a required property"),
    ],
)
def test_plugins_open_the_schema_for_their_methods_and_for_nothing_else(entry, named):
    config = set_at(set_at(DEFAULT, "plugins", ["clipped.py"]), "methods", ["fedavg", entry])
    judge(config, named)
    with pytest.raises(WorkflowError):
        validate(set_at(set_at(config, "methods", ["clipped"]), "plugins", []), str(SCHEMA))


def test_each_method_has_its_own_parameters_with_their_ranges():
    config = set_at(DEFAULT, "plugins", [])
    for name, row in methods().items():
        defaults = {key: plain(one.default) for key, one in row.parameters.items()}
        entries = [name, {"type": name, "name": "other", "eta_g": 0.1, **defaults}]
        validate(set_at(config, "methods", entries), str(SCHEMA))
        with pytest.raises(WorkflowError, match="'nothing' was unexpected"):
            validate(set_at(config, "methods", [{"type": name, "nothing": 1}]), str(SCHEMA))
        for key, one in row.parameters.items():
            if one.range.least is not None and not one.several:
                below = [{"type": name, key: one.range.least - 1}]
                with pytest.raises(WorkflowError, match="is less than the minimum"):
                    validate(set_at(config, "methods", below), str(SCHEMA))


@pytest.mark.parametrize(
    ("conditions", "named"),
    [
        ({"attack": None, "dropout": None, "benchmark_images": None}, None),
        ({"attack": {"type": "corruption", "share": 0.2, "damage": "bits"}}, None),
        ({"attack": {"type": "label-flip", "share": 0.2, "scale": 1}}, "'scale' was unexpected"),
        ({"attack": {"type": "sign-flop", "share": 0.2}}, "'sign-flop' is not one of"),
        ({"attack": {"type": "sign-flip"}}, "'share' is a required property"),
        ({"attack": {"type": "sign-flip", "share": 2}}, "2 is greater than the maximum"),
        ({"dropuot": {}}, "'dropuot' was unexpected"),
        ({"dropout": {"probabilty": 0.1}}, "'probabilty' was unexpected"),
        ({"quantisation": {"bits": 17}}, "17 is greater than the maximum"),
        ({"compute": {"late": "never"}}, "'never' is not one of"),
    ],
)
def test_what_is_wrong_in_conditions_is_named(conditions, named):
    """In those of the config and in those of a scenario."""
    judge(set_at(DEFAULT, "conditions", conditions), named)
    judge(set_at(DEFAULT, "scenarios", {"case": {"conditions": conditions}}), named)
    if named is None:
        parse_conditions(conditions)


def test_an_attack_may_be_of_a_plugin_where_there_is_one():
    away = {"type": "away", "share": 0.2, "step": 3}
    config = set_at(set_at(DEFAULT, "plugins", ["away.py"]), "conditions", {"attack": away})
    validate(config, str(SCHEMA))
    with pytest.raises(WorkflowError, match="'share' is a required property"):
        validate(set_at(config, "conditions.attack", {"type": "away"}), str(SCHEMA))
    with pytest.raises(WorkflowError, match="'away' is not one of"):
        validate(set_at(config, "plugins", []), str(SCHEMA))


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("optimiser", {"type": "sgd", "momentum": 0.9, "nesterov": True}, None),
        ("optimiser", {"type": "sgd", "momentun": 0.9}, "'momentun' was unexpected"),
        ("optimiser", {"momentum": 0.9}, "'type' is a required property"),
        ("optimiser", {"type": "of-a-plugin", "anything": 1}, None),
        ("loss", {"type": "cross-entropy", "class_weights": [1, 2.5]}, None),
        ("loss", {"type": "focal", "gamma": -1}, "-1 is less than the minimum"),
    ],
)
def test_optimiser_and_loss_have_their_own_parameters(key, value, named):
    """For all methods, and for one of them."""
    judge(set_at(DEFAULT, f"training.{key}", value), named)
    judge(set_at(DEFAULT, "methods", [{"type": "fedavg", key: value}]), named)


SECTIONS = {
    "federation": FederationConfig,
    "partition": PartitionSettings,
    "training": TrainingConfig,
    "adapters": AdaptersConfig,
}
ODD = (-1, 0, 1, 2, 0.5, 1.5, "1", True, None, [], {}, 1e-30, 10**6)


@pytest.mark.parametrize("section", SECTIONS)
def test_what_the_schema_refuses_a_part_refuses(section):
    """The schema is a first sieve: whatever a part takes passes it."""
    for key, one in declared(SECTIONS[section]).items():
        for value in ODD:
            try:
                one.check(value, key)
            except (ValueError, OSError):
                continue
            if key in ("optimiser", "loss"):  # Checked by those who know the plugins.
                continue
            validator = Draft202012Validator(value_of(one))
            assert validator.is_valid(value), f"{section}.{key}: {value!r}"


def test_every_key_of_the_config_is_explained():
    pages = [ROOT / "config/README.md", ROOT / "docs/config.md", ROOT / "docs/methods.md"]
    explained = set(re.findall(r"`([a-z_0-9]+)`", "".join(page.read_text() for page in pages)))
    assert keys_of(json.loads(SCHEMA.read_text())) - explained == set()


def keys_of(schema: object) -> set[str]:
    """All keys for which a schema has properties, however deep."""
    if isinstance(schema, list):
        return set().union(*map(keys_of, schema))
    if not isinstance(schema, dict):
        return set()
    properties = schema.get("properties")
    own = set(properties) if isinstance(properties, dict) else set()
    return own.union(*map(keys_of, schema.values()))
