"""The files and words that make runs of a record again."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from fedsdg.analysis.summary import Summary
from fedsdg.experiment.again import again
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.grid.runs import grid_runs

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "config"


def runs_of(experiment, **wanted):
    """Runs of a record that went well, with their configs read."""
    found = Summary(ROOT / "results/reference" / experiment).runs
    return [
        {**run, "config": json.loads(run["config"])}
        for run in found
        if run["status"] == "ok" and all(run[name] in known for name, known in wanted.items())
    ]


@pytest.mark.parametrize(
    ("experiment", "wanted", "files"),
    [
        ("needs", {"method": ["fedsdg"]}, ["needs.yaml"]),
        ("label-skew", {"method": ["krum"], "skew": ["dirichlet~0.1"]}, ["config.yaml"]),
        ("cifar100", {"method": ["fedsdg"]}, ["paper.yaml", "cifar100.yaml"]),
    ],
)
def test_the_files_are_those_that_give_the_very_runs(experiment, wanted, files):
    """And the words choose them, and no others, in the grid of these files."""
    runs = runs_of(experiment, **wanted)
    way = again(experiment, runs, CONFIGS)
    assert [Path(file).name for file in way.files] == files and way.differs == ()
    assert way.command == " ".join(["fedsdg run --grid", *way.files, "--only", *way.only])
    chosen = grid_runs(load_config(way.files), Path("store"), way.only)
    names = {(run.config.dataset, run.identity["skew"], run.identity["label"]) for run in chosen}
    assert names == {(run["dataset"], run["skew"], run["method"]) for run in runs}
    assert {run.config.seed for run in chosen} >= {run["seed"] for run in runs}


def test_what_has_changed_since_is_named(tmp_path):
    shutil.copy(CONFIGS / "needs.yaml", tmp_path / "needs.yaml")
    runs = runs_of("needs", method=["fedavg"], seed=[0])
    assert again("needs", runs, tmp_path).differs == ()
    config = yaml.safe_load((tmp_path / "needs.yaml").read_text())
    config["federation"] = {**config.get("federation", {}), "rounds": 61}
    (tmp_path / "needs.yaml").write_text(yaml.safe_dump(config))
    way = again("needs", runs, tmp_path)
    assert way.differs == ("the config's federation.rounds is 60 in it, but 61 here",)
    assert again("needs", [{**runs[0], "seed": 99}], tmp_path).differs == (
        "the config's grid has no fedavg at iid@half, seed 99",
    )


def test_an_experiment_that_no_file_names_has_no_way(tmp_path):
    (tmp_path / "list.yaml").write_text("- 1\n")
    assert again("needs", runs_of("needs", method=["fedavg"], seed=[0]), tmp_path) is None
