"""Bad configs: each is one sentence that names the place and the remedy."""

import copy
from pathlib import Path

import pytest
import yaml

from fedsdg.experiment.config import parse_config
from fedsdg.experiment.config_files import load_config
from fedsdg.methods.families import METHODS

DEFAULT = Path(__file__).parents[2] / "config" / "config.yaml"


@pytest.fixture
def raw():
    return yaml.safe_load(DEFAULT.read_text())


def test_the_default_config_is_the_grid_of_thirteen_methods(raw):
    config = parse_config(raw)
    assert {method.type for method in config.methods} <= set(METHODS)
    assert (len(config.methods), len(config.skews), len(config.seeds)) == (13, 3, 5)


@pytest.mark.parametrize(
    "path, value, message",
    [
        (["methods"], ["fedsdgg"], r"unknown method 'fedsdgg'; did you mean 'fedsdg'\?"),
        (["methods"], ["fedavg", "fedavg"], "'fedavg' twice"),
        (["methods"], [{"type": "fedprox", "mew": 1}], r"no parameter 'mew'; did you mean 'mu'\?"),
        (["methods"], [{"type": "fedprox", "mu": -1}], "fedprox.mu is -1, but must be at least 0"),
        (["methods"], [{"type": "fedprox", "mu": "1e-4"}], "write 0.0001 or 1.0e-4"),
        (["methods"], [{"mu": 1}], "has no 'type'"),
        (["methods"], [{"type": "scaffold", "optimiser": "adam"}], "scaffold prescribes sgd"),
        (["methods"], [{"type": "cgsv", "floor": 1}], "cgsv.floor is 1, but must be at most 0.999"),
        (["skews"], ["dirichlet~0"], "α = 0, but α must be greater than 0"),
        (["skews"], ["dirichlet~-0.1"], "is not a skew"),
        (["skews"], ["quantity~0"], "is not a skew"),
        (["skews"], ["mixed~0.5~0.1"], "is not a skew"),
        (["partition", "scheme"], "per-class", "unknown key 'scheme'"),
        (["skews"], [0.1], "is not a skew"),
        (["seeds"], [], "at least one entry"),
        (["seeds"], [-1], "at least 0"),
        (["seeds"], ["a"], "must be a number"),
        (["federation", "clients_per_round"], 21, "more than the 20 clients"),
        (["federation", "clients"], 0, "federation.clients is 0, but must be at least 1"),
        (["federation", "clients"], 2.5, "whole number"),
        (["federation", "client"], 5, r"unknown key 'client'; did you mean 'clients'\?"),
        (["training", "optimiser"], "adan", r"there is no 'adan'; did you mean 'adam'"),
        (["training", "eta_g"], True, "must be a number"),
        (["backbone"], "lettres", r"not described under backbones; did you mean 'letters'\?"),
        (["experiments"], "x", r"unknown key 'experiments'; did you mean 'experiment'\?"),
        (["experiment"], "a/b", "must be made of letters"),
        (["experiment"], "x" * 300, "300 characters long, but may have at most 100"),
        (["methods"], [{"type": "krum", "name": "k" * 101}], "101 characters long"),
        (["federation", "rounds"], 999999999999, "must be at most 1000000"),
        (["search", "seeds"], [3], "seed 3 belongs to the grid"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(raw, path, value, message):
    broken = copy.deepcopy(raw)
    place = broken
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ValueError, match=message) as caught:
        parse_config(broken)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"source": "x"}, "letters.source is 'x', but must be one of pretrain, checkpoint, timm"),
        ({"source": None}, "letters.source is None"),
        ({"epochs": -1}, "letters.epochs is -1, but must be at least 1"),
        ({"epochs": 1.5}, "letters.epochs is 1.5, but must be a whole number"),
        ({"epoch": 3}, "letters: unknown key 'epoch'; did you mean 'epochs'"),
        ({"heads": 3}, "letters: heads 3 must divide dim 64"),
        ({"patch_size": 3}, "letters: patch_size 3 must divide image_size 8"),
        ({"channels": 2}, "letters.channels is 2, but must be one of 1, 3"),
        ({"dim": "64"}, "letters.dim is the text '64', but must be a number"),
        ({"data": "leters"}, "letters: data: unknown data set 'leters'"),
        ({"probe": "digit"}, "letters: probe: unknown data set 'digit'; did you mean 'digits'"),
        ({"images": None}, "letters: letters are rendered, so images must be a number"),
        ({"mean": [0.5, 0.5], "std": [1, 1]}, "letters: mean needs one number per channel, 1"),
        ({"mean": [0.5], "std": [0]}, "letters: std must be above 0"),
        ({"augment": "mixup"}, "letters.augment is 'mixup'"),
        ({"precision": "float16"}, "letters.precision is 'float16'"),
        ({"device": "tpu"}, "letters.device is 'tpu'"),
        ({"learning_rate": 0}, "letters.learning_rate is 0, but must be at least"),
        ({"threads": 0}, "letters.threads is 0"),
        ({"file": "x.safetensors"}, "letters: unknown key 'file'"),
        ({"source": "checkpoint"}, "letters lacks the key 'file'"),
    ],
)
def test_what_is_wrong_with_a_backbone_is_named_before_any_work(raw, entry, message):
    raw["backbones"]["letters"].update(entry)
    with pytest.raises(ValueError, match=f"backbones.{message}"):
        parse_config(raw)


def test_a_backbone_that_nobody_uses_is_checked_too(raw):
    raw["backbones"]["other"] = {"source": "timm"}
    with pytest.raises(ValueError, match="backbones.other lacks the key 'timm_name'"):
        parse_config(raw)
    raw["backbones"]["other"] = "letters"
    with pytest.raises(ValueError, match="backbones.other is 'letters', but must be a mapping"):
        parse_config(raw)


def test_a_missing_key_is_named(raw):
    del raw["seeds"]
    with pytest.raises(ValueError, match="lacks the key 'seeds'"):
        parse_config(raw)


def test_files_merge_like_snakemake(tmp_path):
    update = tmp_path / "more.yaml"
    update.write_text("federation: {rounds: 3}\nseeds: [7]\n")
    config = load_config([DEFAULT, update])
    assert config.federation.rounds == 3 and config.federation.clients == 20
    assert config.seeds == (7,)


def test_missing_and_broken_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no config file"):
        load_config([tmp_path / "none.yaml"])
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1, 2")
    with pytest.raises(ValueError, match="is not valid YAML"):
        load_config([broken])
    broken.write_text("federation: {rounds: 3}\nseeds: [0]\nfederation: {clients: 10}\n")
    with pytest.raises(ValueError, match="'federation' stands in line 1 and again in line 3"):
        load_config([broken])
    with pytest.raises(ValueError, match="--set 'federation.rounds=1:30'.*another base"):
        load_config(settings=["federation.rounds=1:30"])


def test_the_hash_of_a_run_sees_what_matters_and_only_that(raw):
    config = parse_config(raw)
    fedsdg, fedavg = config.method("fedsdg"), config.method("fedavg")
    run = config.run("digits", "iid", fedsdg, 0)
    assert run.hash == config.run("digits", "iid", fedsdg, 0).hash
    others = [
        config.run("digits", "iid", fedsdg, 1),
        config.run("digits", "classes~2", fedsdg, 0),
        config.run("digits", "iid", fedavg, 0),
    ]
    raw["methods"][0] = {"type": "fedsdg", "lambda1": 0.0002, "lambda2": 0.0001}
    changed = parse_config(raw)
    others.append(changed.run("digits", "iid", changed.method("fedsdg"), 0))
    assert len({run.hash, *(other.hash for other in others)}) == 5
    assert changed.run("digits", "iid", changed.method("fedavg"), 0).hash == others[2].hash
    seldom = parse_config({**raw, "checkpoint_seconds": 600})
    assert seldom.checkpoint_seconds == 600
    assert seldom.run("digits", "iid", seldom.method("fedavg"), 0).hash == others[2].hash


def test_methods_prescribe_their_optimiser(raw):
    config = parse_config(raw)
    for method in config.methods:
        wanted = "sgd" if method.type in ("scaffold", "fedavg-sgd") else "adam"
        assert config.run("digits", "iid", method, 0).training.optimiser == wanted


def test_settings_are_laid_over_the_files():
    settings = ["training.device=cuda", "federation.rounds=3", "methods=[{type: fedprox, mu: 0.5}]"]
    settings += ["skews=['iid']", "backbones.letters.epochs=2"]
    config = load_config([DEFAULT], settings)
    assert (config.training.device, config.federation.rounds) == ("cuda", 3)
    assert config.skews == ("iid",) and config.methods[0].parameters["mu"] == 0.5
    assert config.backbones["letters"]["epochs"] == 2
    assert config.backbones["letters"]["dim"] == load_config([DEFAULT]).backbones["letters"]["dim"]


@pytest.mark.parametrize(
    "setting, message",
    [
        ("rounds", "write key=value"),
        ("=3", "write key=value"),
        ("a..b=3", "write key=value"),
        ("federation.rounds=[", "not a value in YAML"),
        ("federation.rouns=3", "unknown key 'rouns'"),
        ("training.eta_g=1e-4", "write 0.0001"),
    ],
)
def test_a_bad_setting_is_named(setting, message):
    with pytest.raises(ValueError, match=message):
        load_config([DEFAULT], [setting])


def test_the_papers_grid_is_the_specifications():
    """Section on hyper-parameters; the order of methods is the order in which they are run."""
    paper = load_config([DEFAULT, DEFAULT.with_name("paper.yaml")])
    assert (paper.federation.clients, paper.federation.clients_per_round) == (100, 10)
    assert (paper.federation.rounds, paper.training.epochs) == (100, 1)
    assert (paper.adapters.rank, paper.adapters.alpha) == (8, 16)
    rates = (paper.training.eta_g, paper.training.eta_p, paper.training.eta_m)
    assert rates == (1e-3, 1e-3, 5e-3)
    assert paper.skews == ("dirichlet~0.1", "dirichlet~0.3", "dirichlet~1.0")
    assert len(paper.seeds) == 3
    assert paper.methods[0].parameters["lambda1"] in (1e-4, 5e-4, 1e-3)
    assert paper.methods[0].parameters["lambda2"] in (1e-4, 1e-3)
    first = ["fedsdg", "fedavg", "fedprox", "scaffold", "krum"]
    first += ["geometric-median", "coordinate-median", "cgsv"]
    assert [method.label for method in paper.methods][:8] == first
    default = load_config([DEFAULT])
    assert {m.label for m in paper.methods} == {m.label for m in default.methods}
    for extra in ("paper-k50", "paper-e2"):
        over = [DEFAULT.with_name(f"{name}.yaml") for name in ("config", "paper", extra)]
        config = load_config(over)
        assert config.federation.clients_per_round * 10 == config.federation.clients
        assert (config.federation.clients, config.training.epochs) in ((50, 1), (100, 2))
        assert config.backbone == paper.backbone and config.seeds == paper.seeds


def test_a_client_too_small_to_be_split_is_refused_with_the_config():
    text = yaml.safe_load(DEFAULT.read_text())
    with pytest.raises(ValueError, match="partition: min_samples is 4; make it at least 5"):
        parse_config(text | {"partition": {"min_samples": 4}})
    small = parse_config(text | {"partition": {"min_samples": 4, "min_test": 2}})
    assert small.partition.min_samples == 4


def test_the_test_set_is_fixed_unless_the_config_says_by_seed():
    text = yaml.safe_load(DEFAULT.read_text())
    del text["partition"]["test"]
    assert parse_config(text).partition.test == "fixed"
    assert parse_config(text | {"partition": {"test": "by-seed"}}).partition.test == "by-seed"
    with pytest.raises(
        ValueError, match="partition.test is 'seeded', but must be one of fixed, by-seed$"
    ):
        parse_config(text | {"partition": {"test": "seeded"}})


@pytest.mark.parametrize(
    ("key", "value", "names"),
    [
        ("methods", ["fedsdg", {"type": "fedavg", "name": "FedSDG"}], "'fedsdg' and 'FedSDG'"),
        ("skews", ["column~a", "column~A"], "'column~a' and 'column~A'"),
        ("scenarios", {"half": {}, "Half": {}}, "'half' and 'Half'"),
        (
            "datasets",
            [{"name": name, "folder": name, "label": "y"} for name in ("birds", "Birds")],
            "'birds' and 'Birds'",
        ),
    ],
)
def test_names_that_differ_in_case_alone_are_refused(raw, key, value, names):
    """On macOS their runs would lie in one folder, and replace one another."""
    given = raw | {"methods": ["fedsdg"]}
    with pytest.raises(ValueError, match=f"{key}: {names} differ in upper and lower case alone"):
        parse_config(given | {key: value})
