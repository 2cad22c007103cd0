"""Newcomers get the search that an arena's rows had, over a space of their own or the usual."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from fedsdg.experiment.comparing.newcomers import Newcomers
from fedsdg.experiment.comparing.pairing import bring_backbone
from fedsdg.experiment.comparing.tuning import tune
from fedsdg.experiment.config_files import load_config

ROOT = Path(__file__).parents[3]
SMALL = ["federation.rounds=2", "federation.evaluate_every=1", "training.epochs=1"]
ENTRIES = (
    {"type": "fedprox", "name": "mine", "mu": 0.1},
    {"type": "fedavg-sgd", "name": "by-sgd"},
    {"type": "fedprox", "name": "own-space"},
)
#: What the arena says of its own rows.
OF_ROWS = ("tuned",)
SPACE = {"own-space": {"mu": [0.5, 0.75], "eta_g": [0.001, 0.002]}}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """(newcomers after the search, what the search wrote, the arena)."""
    work = tmp_path_factory.mktemp("tuned")
    newcomers = Newcomers(ENTRIES, (), SPACE)
    methods = work / "methods.yaml"
    methods.write_text(
        yaml.safe_dump(
            {"methods": list(ENTRIES), **dict.fromkeys(OF_ROWS), "search": {"space": {}}}
        )
    )
    arena = ROOT / "config/cross-needs.yaml"
    published = load_config([arena], [*SMALL, "seeds=[3]"])
    published = replace(published, search=replace(published.search, trials=2))
    config = load_config([arena, methods], [*SMALL, "seeds=[3]"])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work)
        bring_backbone(config)
        found = tune(newcomers, config, published, work / "store", 1)
        file = json.loads((work / "results/search/cross-needs.json").read_text())
    return found, file, published


@pytest.mark.slow
def test_the_seeds_and_settings_are_those_of_the_arenas_search(tuned):
    _, file, published = tuned
    assert file["seeds"] == list(published.search.seeds) == [100, 101, 102, 103]
    assert file["skews"] == ["iid@half"]
    assert {name: found["planned"] for name, found in file["methods"].items()} == {
        "mine": 2,
        "by-sgd": 2,
        "own-space": 2,
    }


@pytest.mark.slow
def test_the_usual_space_is_the_rate_over_the_range_of_rows_with_that_optimiser(tuned):
    _, file, published = tuned
    spaces = {name: found["space"] for name, found in file["methods"].items()}
    usual = {name: axes["eta_g"].to_dict() for name, axes in published.search.space.items()}
    assert spaces["mine"] == {"eta_g": usual["fedavg"]}
    assert spaces["by-sgd"] == {"eta_g": usual["fedavg-sgd"]}
    assert spaces["own-space"] == {
        "mu": {"choices": [0.5, 0.75]},
        "eta_g": {"choices": [0.001, 0.002]},
    }


@pytest.mark.slow
def test_the_best_values_join_those_of_the_entry(tuned):
    found, file, _ = tuned
    for entry in found.entries:
        best = file["methods"][entry["name"]]["best"]["parameters"]
        assert {key: entry[key] for key in best} == best
    assert found.entries[0]["mu"] == 0.1
