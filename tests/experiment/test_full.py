"""`trainable: full` from the config to the records: digits, a small CNN, no backbone anywhere."""

import dataclasses
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
import yaml

from fedsdg.cli import main
from fedsdg.data.partition_files import read_partition
from fedsdg.experiment.building import build
from fedsdg.experiment.config import parse_config
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.grid.runs import grid_runs, is_finished
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.runs import execute
from fedsdg.files import read_json
from fedsdg.methods.families import METHODS
from fedsdg.models import CnnArchitecture, SmallCnn
from tests.federation.small import run as run_rounds

ROOT = Path(__file__).parents[2]
CONFIGS = [ROOT / "config" / "config.yaml", ROOT / "config" / "extended" / "full.yaml"]
BRIEF = [
    "federation.clients=8",
    "federation.clients_per_round=5",
    "federation.rounds=2",
    "federation.evaluate_every=1",
]
SKEW = "dirichlet~1.0"


@pytest.fixture(scope="module")
def config():
    return load_config(CONFIGS, BRIEF)


@pytest.fixture(scope="module")
def material():
    return prepare_material("digits", None, "cpu")


@pytest.fixture(scope="module")
def partition(config):
    return make_partition("digits", SKEW, 0, config.federation.clients, config.partition)


def of(config, label, **changes):
    return dataclasses.replace(config.run("digits", SKEW, config.method(label), 0), **changes)


# --- The config -----------------------------------------------------------------------------------


def test_the_key_changes_no_run_that_does_without_it():
    """What is left out and what says `adapters` is one run, which does not mention the key."""
    raw = yaml.safe_load(CONFIGS[0].read_text())
    said = parse_config(raw)
    without = parse_config({key: value for key, value in raw.items() if key != "trainable"})
    for method in without.methods:
        runs = [one.run("digits", SKEW, method, 0) for one in (without, said)]
        assert runs[0].hash == runs[1].hash
        assert "trainable" not in runs[0].to_dict()


def test_a_full_run_depends_on_no_backbone_and_no_adapters(config):
    changed = load_config(CONFIGS, [*BRIEF, "adapters.rank=2", "backbones.letters.dim=32"])
    assert of(config, "fedavg").hash == of(changed, "fedavg").hash
    described = of(config, "fedavg").to_dict()
    assert described["trainable"] == "full"
    assert not {"backbone", "adapters"} & set(described)


def test_a_method_that_needs_adapters_is_refused_with_full():
    raw = yaml.safe_load(CONFIGS[0].read_text())
    raw["federation"]["clients_per_round"] = raw["federation"]["clients"]
    for name, row in METHODS.items():
        raw["methods"] = [name]
        asked = row.personalisation.adapters
        whole_head = asked.get("head", "shared") in ("shared", "private", "frozen")
        assert row.needs_adapters == (not set(asked) <= {"head", "local"} or not whole_head)
        if row.needs_adapters:
            said = re.escape(f"{name} works on adapters")
            with pytest.raises(ValueError, match=said):
                parse_config({**raw, "trainable": "full"})
        else:
            parse_config({**raw, "trainable": "full"})
            SmallCnn(CnnArchitecture(8, 1), 10, **asked)


@pytest.mark.parametrize(
    "setting, sentence",
    [
        ("trainable=all", "trainable is 'all', but must be one of adapters, full"),
        ("training.precision=bfloat16", "computes in float32 alone"),
    ],
)
def test_what_full_cannot_do_is_refused(setting, sentence):
    with pytest.raises(ValueError, match=sentence):
        load_config(CONFIGS, [setting])


# --- A run ----------------------------------------------------------------------------------------


def test_images_keep_their_size_and_take_the_fixed_normalisation(material):
    """Digits are stored as 0 … 255 on 8 x 8 pixels; (x / 255 − 0.5) / 0.5 lies in [−1, 1]."""
    images = material.samples.images
    assert images.shape[1:] == (1, 8, 8)
    assert (float(images.min()), float(images.max())) == (-1.0, 1.0)


@pytest.mark.parametrize("label", [method.label for method in load_config(CONFIGS).methods])
def test_every_method_of_the_config_trains(config, material, partition, label):
    setup = build(of(config, label), material, partition)
    assert isinstance(setup.model, SmallCnn)
    assert setup.layout.d + setup.layout.d_private == 22_154
    one = run_rounds(setup)
    last = one.rounds[-1]
    assert 0.0 <= last["personal_accuracy"] <= 1.0
    if setup.layout.d:
        assert not torch.equal(one.theta, setup.first[0])
        assert last["global_accuracy"] is not None
        assert last["bytes_up"] >= 5 * 4 * 22_154
    else:
        assert "global_accuracy" not in last and last["bytes_up"] == 0


def test_all_methods_start_from_the_same_network(config, material, partition):
    shared = build(of(config, "fedavg"), material, partition)
    local = build(of(config, "local-only"), material, partition)
    assert local.layout.private == shared.layout.communicated
    assert torch.equal(local.private, shared.first[0])


def test_the_records_of_two_runs_are_the_same_bytes(config, material, partition, tmp_path):
    run, files = of(config, "fedavg"), ("rounds.parquet", "clients.parquet", "result.json")
    for number in (1, 2):
        store = tmp_path / f"store{number}"
        folder = tmp_path / f"run{number}"
        assert execute(run, material, partition, folder, store=store, identity={}) is None
    for file in files:
        assert (tmp_path / "run1" / file).read_bytes() == (tmp_path / "run2" / file).read_bytes()
    result = read_json(tmp_path / "run1" / "result.json")
    assert result["backbone_hash"] is None
    assert result["communicated_parameters"] == 22_154


@pytest.mark.parametrize("trainable", ["full", "adapters"])
def test_a_backbone_where_there_is_none_and_none_where_there_is_one(
    config, material, partition, trainable
):
    run = of(config, "fedavg", trainable=trainable)
    if trainable == "adapters":
        with pytest.raises(ValueError, match="trainable is adapters, and a backbone was not given"):
            build(run, material, partition)
    else:
        given = dataclasses.replace(material, backbone=object())
        with pytest.raises(ValueError, match="trainable is full, and a backbone was given"):
            build(run, given, partition)


@pytest.mark.slow
def test_a_grid_needs_no_backbone(tmp_path, monkeypatch, forked):
    """The whole way by the command: no file of a backbone is made, and all tables are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FEDSDG_CONFIG", str(CONFIGS[0]))
    monkeypatch.delenv("FEDSDG_STORE", raising=False)
    settings = [*BRIEF, "skews=[iid]", "seeds=[0]", "methods=[fedavg, local-only]"]
    assert main(["run", "--grid", str(CONFIGS[1]), "--set", *settings]) == 0
    assert not (tmp_path / "results/backbones").exists()
    rows = pq.read_table(tmp_path / "results/summary/full/runs.parquet").to_pylist()
    assert [row["status"] for row in rows] == ["ok", "ok"]
    assert "Local only" in (tmp_path / "results/tables/full/main.md").read_text()
    # Finished runs are known as such, though there is no backbone's hash to go by.
    for run in grid_runs(load_config(CONFIGS, settings), tmp_path):
        shares = read_partition(run.partition).sha256
        assert run.backbone is None
        assert is_finished(run, shares, None)
