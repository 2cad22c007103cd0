"""The search tries what the config lists, off the grid, and ranks by mean validation accuracy."""

import json
from pathlib import Path

import pytest
import torch
import yaml

from fedsdg.config import method_entry, parse_config
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build, load_backbone, save_backbone
from fedsdg.runs import execute, make_partition, prepare_material
from fedsdg.search import search, trials

CONFIG = Path(__file__).parents[1] / "config" / "config.yaml"


@pytest.fixture
def config():
    raw = yaml.safe_load(CONFIG.read_text())
    raw["skews"] = ["dirichlet~1.0", "iid"]
    raw["federation"] |= {"clients": 6, "clients_per_round": 5, "rounds": 2}
    raw["search"] = {"seeds": [50], "grids": {"fedprox": {"mu": [0.0, 5.0]}}}
    return parse_config(raw)


def test_trials_are_every_candidate_everywhere_and_keep_the_rest(config):
    found = list(trials(config))
    assert len(found) == 2 * 2 * 1
    assert {t.candidate for t in found} == {(("mu", 0.0),), (("mu", 5.0),)}
    for trial in found:
        assert trial.run.seed == 50
        assert trial.run.parameters == dict(trial.candidate)
        assert trial.run.training == config.training


def test_a_method_keeps_its_other_settings(config):
    raw = yaml.safe_load(CONFIG.read_text())
    raw["search"] = {"seeds": [50], "grids": {"fedsdg": {"eta_g": [0.1]}}}
    raw["methods"][0] = {"type": "fedsdg", "lambda1": 0.5, "eta_m": 0.25}
    (trial, *_) = trials(parse_config(raw))
    assert trial.run.parameters["lambda1"] == 0.5
    assert (trial.run.training.eta_g, trial.run.training.eta_m) == (0.1, 0.25)


@pytest.mark.slow
def test_the_ranking_is_the_mean_of_the_runs_validation_accuracies(config, tmp_path):
    """Each score is computed once more by hand, from a run of its own."""
    architecture = Architecture(8, 4, 1, 16, 2, 2, (0.3,), (0.4,))
    torch.manual_seed(0)
    file = tmp_path / "letters.safetensors"
    save_backbone(build(architecture), architecture, file, {})
    search(config, tmp_path / "store", file, tmp_path / "search.json")
    written = json.loads((tmp_path / "search.json").read_text())["methods"]["fedprox"]
    assert written[0]["val_accuracy"] >= written[1]["val_accuracy"]
    material = prepare_material("digits", load_backbone(file), "cpu")
    for row in written:
        method = method_entry({"type": "fedprox", **row["parameters"]})
        scores = []
        for skew in config.skews:
            shares = make_partition("digits", skew, 50, 6, config.partition)
            execute(
                config.run("digits", skew, method, 50), material, shares, tmp_path / "again",
                store=tmp_path / "other-store", identity={},
            )  # fmt: skip
            result = json.loads((tmp_path / "again" / "result.json").read_text())
            scores.append(result["last"]["val_accuracy"])
            assert row["by_skew"][skew] == pytest.approx(scores[-1], abs=1e-12)
        assert row["val_accuracy"] == pytest.approx(sum(scores) / 2, abs=1e-12)


def test_nothing_to_search_and_no_backbone(config, tmp_path):
    with pytest.raises(FileNotFoundError, match="make it with 'fedsdg pretrain"):
        search(config, tmp_path, tmp_path / "none.safetensors", tmp_path / "out.json")
