"""The closed schema: what is wrong in a config is named before anything runs."""

import copy
import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from fedsdg.methods.table import METHODS
from snakemake.exceptions import WorkflowError
from snakemake.utils import update_config, validate

from fedsdg.data.datasets import DATASETS
from fedsdg.experiment import conditions
from fedsdg.experiment.config import OVERRIDES, load_config

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "workflow/schemas/config.schema.yaml"
DEFAULT = yaml.safe_load((ROOT / "config/config.yaml").read_text())


def set_at(config: dict, place: str, value: object) -> dict:
    """A copy of the config in which one place, written with dots, has another value."""
    changed = copy.deepcopy(config)
    *folders, name = place.split(".")
    target = changed
    for folder in folders:
        target = target[folder]
    target[name] = value
    return changed


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
        over_paper = overlay.stem.startswith(("paper-", "cifar100"))
        below = [folder / "config.yaml", *([folder / "paper.yaml"] if over_paper else [])]
        below += [folder / "cifar100.yaml"] if overlay.stem == "cifar100-needs" else []
        config = load_config([*below, overlay])
        validate(merged([*below, overlay]), str(SCHEMA))
        assert config.experiment == ("label-skew" if overlay.stem == "config" else overlay.stem)
    smoke = yaml.safe_load((ROOT / "config/smoke.yaml").read_text())
    assert set(smoke) <= set(DEFAULT)


def test_reproducing_runs_every_method_and_every_kind_of_condition():
    made = re.search(r"^SMALL = (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    files = ["config", *made[1].split()]
    configs = [load_config([ROOT / "config/config.yaml", ROOT / f"config/{f}.yaml"]) for f in files]
    assert {method.type for config in configs for method in config.methods} == set(METHODS)
    met = {
        name
        for config in configs
        for setting in config.settings
        for name in config.scenario(setting).conditions.to_dict()
    }
    assert met >= {field.name for field in fields(conditions.Conditions)}


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
        ("datasets", ["imagenet"], "'imagenet' is not one of"),
        ("datasets", "digits", "'digits' is not of type 'array'"),
        ("skews", ["dirichlet~0"], "'dirichlet~0' does not match"),
        ("skews", ["dirichlet~0.00"], "'dirichlet~0.00' does not match"),
        ("skews", ["dirichlet~-1"], "'dirichlet~-1' does not match"),
        ("skews", ["dirichlet~1e-1"], "'dirichlet~1e-1' does not match"),
        ("skews", ["classes~0"], "'classes~0' does not match"),
        ("skews", ["mixed~1.0~0.1"], "'mixed~1.0~0.1' does not match"),
        ("skews", ["mixed~0.5~0.0"], "'mixed~0.5~0.0' does not match"),
        ("skews", ["quantity~0.0"], "'quantity~0.0' does not match"),
        ("skews", [0.1], "0.1 is not of type 'string'"),
        ("seeds", [0, 0], "has non-unique elements"),
        ("seeds", [-1], "-1 is less than the minimum"),
        ("seeds", ["0"], "'0' is not of type 'integer'"),
        ("rouds", 20, "'rouds' was unexpected"),
        ("training.epoch", 2, "'epoch' was unexpected"),
        ("training.eta_g", "1e-4", "'1e-4' is not of type 'number'"),
        ("training.batch_size", 1.5, "1.5 is not of type 'integer'"),
        ("federation.clients", 0, "0 is less than the minimum"),
        ("federation.global_images", 0, "0 is less than the minimum"),
        ("checkpoint_seconds", -1, "-1 is less than the minimum"),
        ("partition.scheme", "per-label", "'per-label' is not one of"),
        ("adapters.targets", "all", "'all' is not one of"),
        ("backbones.letters.source", "random", "'random' is not one of"),
        ("backbones.letters.deph", 6, "'deph' was unexpected"),
        ("search.space.a/b", {"mu": [1]}, "'a/b' does not match"),
        ("search.space.fedsdg", {"mu": []}, "[] should be non-empty"),
        ("search.trials", 0, "0 is less than the minimum"),
        ("experiment", "../elsewhere", "'../elsewhere' does not match"),
    ],
)
def test_what_is_wrong_is_named(place, value, named):
    with pytest.raises(WorkflowError) as raised:
        validate(set_at(DEFAULT, place, value), str(SCHEMA))
    assert named in str(raised.value)


@pytest.mark.parametrize("section", ["experiment", "methods", "federation", "backbones"])
def test_a_missing_section_is_named(section):
    lacking = {key: value for key, value in DEFAULT.items() if key != section}
    with pytest.raises(WorkflowError, match=f"'{section}' is a required property"):
        validate(lacking, str(SCHEMA))


@pytest.mark.parametrize(
    "skew",
    [
        "dirichlet~0.1",
        "dirichlet~10",
        "dirichlet~.5",
        "classes~2",
        "quantity~0.5",
        "mixed~0.5~0.1",
        "domains",
        "iid",
    ],
)
def test_every_kind_of_skew_is_known(skew):
    validate(set_at(DEFAULT, "skews", [skew]), str(SCHEMA))


def test_snakemake_refuses_before_it_plans_anything(project):
    (project.folder / "wrong.yaml").write_text("methods: [fedsdgg]\n")
    refused = project.snakemake("--cores", "1", "--configfile", "wrong.yaml")
    assert refused.returncode != 0
    assert "'fedsdgg' is not one of" in refused.stdout
    assert not (project.folder / "results").exists()
    assert not (project.folder / ".fedsdg").exists()


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
    if named is None:
        validate(config, str(SCHEMA))
    else:
        with pytest.raises(WorkflowError) as raised:
            validate(config, str(SCHEMA))
        assert named in str(raised.value)
    with pytest.raises(WorkflowError):
        validate(set_at(set_at(config, "methods", ["clipped"]), "plugins", []), str(SCHEMA))


def test_schema_and_package_know_the_same_methods_keys_and_data_sets():
    schema = yaml.safe_load(SCHEMA.read_text())
    definitions = schema["$defs"]
    assert definitions["method_type"]["enum"] == list(METHODS)
    parameters = {key for method in METHODS.values() for key in method.parameters}
    assert set(definitions["method"]["properties"]) == parameters | {"type", "name", *OVERRIDES}
    assert sorted(definitions["dataset"]["enum"]) == sorted(DATASETS)
    assert set(schema["properties"]) == {*DEFAULT, "plugins", "conditions", "scenarios", "primary"}


def test_schema_and_package_know_the_same_conditions():
    definitions = yaml.safe_load(SCHEMA.read_text())["$defs"]
    known = definitions["conditions"]["properties"]
    assert set(known) == {field.name for field in fields(conditions.Conditions)}
    for name, section in (
        ("dropout", conditions.DropoutConfig),
        ("label_noise", conditions.LabelNoiseConfig),
        ("label_conflict", conditions.LabelConflictConfig),
        ("feature_shift", conditions.FeatureShiftConfig),
        ("compute", conditions.ComputeConfig),
        ("quantisation", conditions.QuantisationConfig),
    ):
        assert set(known[name]["properties"]) == {field.name for field in fields(section)}
    attack = definitions["attack"]["properties"]
    assert definitions["attack_type"]["enum"] == list(conditions.ATTACKS)
    parameters = {key for row in conditions.ATTACKS.values() for key in row.parameters}
    assert set(attack) == parameters | {"type", "share"}


def test_every_key_of_the_schema_is_explained_in_the_readme():
    schema = yaml.safe_load(SCHEMA.read_text())
    explained = set(re.findall(r"`([a-z_0-9]+)`", (ROOT / "config/README.md").read_text()))
    keys = set(schema["properties"])
    for section in ("partition", "adapters", "search"):
        keys |= set(schema["properties"][section]["properties"])
    for part in (
        "federation_keys",
        "training_keys",
        "method",
        "backbone",
        "conditions",
        "own_dataset",
    ):
        keys |= set(schema["$defs"][part]["properties"])
    for section in schema["$defs"]["conditions"]["properties"].values():
        keys |= set(section.get("properties", {}))
    assert keys - explained == set()
