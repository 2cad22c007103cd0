"""The files and words that make runs of a record again."""

import shutil
from pathlib import Path

import pytest
import yaml

from fedsdg.experiment.again import again
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.grid.runs import grid_runs
from fedsdg.experiment.replay import recorded_runs

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "config"


def runs_of(experiment, **wanted):
    """Runs of a record that went well, with their configs read."""
    found = [run.row for run in recorded_runs(ROOT / "results/reference" / experiment)]
    return [run for run in found if all(run[name] in known for name, known in wanted.items())]


@pytest.mark.parametrize(
    ("experiment", "wanted", "file"),
    [
        ("cross-needs", {"method": ["fedsdg"]}, "cross-needs.yaml"),
        ("label-skew", {"method": ["krum"], "skew": ["dirichlet~0.1"]}, "config.yaml"),
        ("cifar100", {"method": ["fedsdg"]}, "cifar100.yaml"),
    ],
)
def test_the_file_is_the_one_that_gives_the_very_runs(experiment, wanted, file):
    """And the words choose them, and no others, in the grid of these files."""
    runs = runs_of(experiment, **wanted)
    way = again(experiment, runs, CONFIGS)
    assert Path(way.file).name == file and way.differs == ()
    assert way.command == " ".join(["fedsdg run --grid", way.file, "--only", *way.only])
    chosen = grid_runs(load_config([way.file]), Path("store"), way.only)
    names = {(run.config.dataset, run.identity["skew"], run.identity["label"]) for run in chosen}
    assert names == {(run["dataset"], run["skew"], run["method"]) for run in runs}
    assert {run.config.seed for run in chosen} >= {run["seed"] for run in runs}


def test_what_has_changed_since_is_named(tmp_path):
    shutil.copy(CONFIGS / "cross-needs.yaml", tmp_path / "cross-needs.yaml")
    runs = runs_of("cross-needs", method=["fedavg"], seed=[3])
    assert again("cross-needs", runs, tmp_path).differs == ()
    config = yaml.safe_load((tmp_path / "cross-needs.yaml").read_text())
    config["federation"] = {**config.get("federation", {}), "rounds": 121}
    (tmp_path / "cross-needs.yaml").write_text(yaml.safe_dump(config))
    way = again("cross-needs", runs, tmp_path)
    assert way.differs == ("the config's federation.rounds is 120 in it, but 121 here",)
    assert again("cross-needs", [{**runs[0], "seed": 99}], tmp_path).differs == (
        "the config's grid has no fedavg at iid@half, seed 99",
    )


def test_an_experiment_that_no_file_names_has_no_way(tmp_path):
    (tmp_path / "list.yaml").write_text("- 1\n")
    assert (
        again("cross-needs", runs_of("cross-needs", method=["fedavg"], seed=[3]), tmp_path) is None
    )
