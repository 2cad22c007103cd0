"""The published record: search, runs and merge by a list, from wherever it was left."""

import itertools
import shutil
from pathlib import Path

import pytest
import yaml

from fedsdg.config import run
from fedsdg.config.layers import merged
from fedsdg.experiment import record as module
from fedsdg.experiment.grid import Runner
from fedsdg.experiment.record import make_record
from fedsdg.files import places, read_json
from fedsdg.files.records import read_parquet, write_tables
from fedsdg.files.yaml_text import read_yaml_file
from tests.experiment.conftest import TINY

RECORD = Path("results/reference/tiny")
SPACE = {"fedavg": {"eta_g": [0.001, 0.1, "log"]}}


@pytest.fixture
def listed(folder, forked, monkeypatch):
    """A list of two steps, search and runs of one config."""
    search = {"seeds": [100, 101], "trials": 2, "space": SPACE}
    config = TINY | {"methods": ["fedavg"], "search": search, "skews": ["iid"]}
    config |= {"tuned": str(RECORD / "tuned.yaml")}
    write(config)
    steps = folder / "record.yaml"
    steps.write_text("- [search, tiny.yaml, 36]\n- [runs, tiny.yaml, 36]\n")
    monkeypatch.setattr(module, "STEPS", steps)
    return config


def write(config):
    Path("tiny.yaml").write_text(yaml.safe_dump(config))


def made():
    return read_parquet(RECORD / "runs.parquet").to_pylist()


def test_without_time_it_says_what_is_left(listed):
    # Two trials of half the rounds and both again on another seed; two seeds of the grid.
    assert [*make_record(1, minutes=0)] == [
        "search tiny.yaml: 4 runs left, about 0.0 core-hours",
        "runs tiny.yaml: 2 runs left, about 0.0 core-hours",
        "in all: 6 runs left, about 0.1 core-hours",
    ]
    assert not Path(".fedsdg").exists() and not RECORD.exists()


def test_it_searches_runs_and_records_and_goes_on_from_the_record_alone(listed, monkeypatch, capfd):
    done = [f"{step}: finished" for step in ("search tiny.yaml", "runs tiny.yaml", "in all")]
    assert [*make_record(1)] == done
    before = made()
    assert [row["seed"] for row in before] == [0, 1]
    best = read_json(RECORD / "search.json")["methods"]["fedavg"]["best"]["parameters"]
    assert yaml.safe_load((RECORD / "tuned.yaml").read_text()) == {"fedavg": best}

    # A clone has the record alone: neither the search nor a recorded run is done again.
    shutil.rmtree(".fedsdg")
    for name in ("runs", "search", "summary"):
        shutil.rmtree(Path("results", name))
    write(listed | {"seeds": [0, 1, 2]})
    assert [*make_record(1)] == done
    assert [row["seed"] for row in made()] == [0, 1, 2]
    assert made()[:2] == before
    assert [file.name for file in Path(".fedsdg/runs").iterdir()] == [made()[2]["address"]]

    # A search whose runs are to come goes on from what is committed of it.
    shutil.rmtree(".fedsdg")
    for name in ("runs", "summary"):
        shutil.rmtree(Path("results", name))
    shutil.move(RECORD, "elsewhere")
    RECORD.mkdir()
    shutil.copy("elsewhere/search.json", RECORD)
    module.STEPS.write_text("- [search, tiny.yaml, 36]\n")
    assert [*make_record(1, minutes=0)] == [done[0], done[2]]
    assert [*make_record(1)] == [done[0], done[2]]
    assert not Path(".fedsdg/runs").exists()
    shutil.rmtree(RECORD)
    shutil.move("elsewhere", RECORD)

    # Runs of another version stay until all are done anew.
    module.STEPS.write_text("- [runs, tiny.yaml, 36]\n")
    before = made()
    monkeypatch.setattr(run, "NUMERICS", run.NUMERICS + 1)
    shutil.rmtree("results/search")
    module.STEPS.write_text("- [search, tiny.yaml, 36]\n- [runs, tiny.yaml, 36]\n")
    assert not next(iter(make_record(1, minutes=0))).endswith("finished")
    module.STEPS.write_text("- [runs, tiny.yaml, 36]\n")
    monkeypatch.setattr(Runner, "run", lambda _, tasks: iter(()))
    assert [*make_record(1)][-1].startswith("in all: 3 runs left")
    sentence = "the record of tiny has runs of another version or config, such as "
    assert sentence in capfd.readouterr().err
    assert made() == before


@pytest.fixture
def grid(folder, forked, monkeypatch):
    """A list of one step, the runs of two methods."""
    config = TINY | {"methods": ["fedavg", "fedprox"], "search": {}, "skews": ["iid"]}
    write(config)
    steps = folder / "record.yaml"
    steps.write_text("- [runs, tiny.yaml, 36]\n")
    monkeypatch.setattr(module, "STEPS", steps)
    return config


def forget_results():
    for name in ("runs", "summary"):
        shutil.rmtree(Path("results", name))


def test_recorded_runs_stay_where_others_go(grid):
    assert [*make_record(1)][-1] == "in all: finished"
    before = made()
    forget_results()
    shutil.rmtree(".fedsdg")
    RECORD.rename(RECORD.with_name(".tiny.replaced"))  # as a kill between two renames leaves it
    write(grid | {"methods": ["fedavg"], "seeds": [0, 1, 2]})
    assert [*make_record(1)][-1] == "in all: finished"
    assert [(row["method"], row["seed"]) for row in made()] == [("fedavg", n) for n in range(3)]
    assert made()[:2] == [row for row in before if row["method"] == "fedavg"]
    assert [file.name for file in Path(".fedsdg/runs").iterdir()] == [made()[2]["address"]]

    # The first records say no addresses: their runs are of another version.
    rows = read_parquet(RECORD / "runs.parquet").drop_columns("address")
    (RECORD / "SHA256SUMS").unlink()
    write_tables(RECORD / "runs.parquet", [rows], rows.schema)
    forget_results()
    assert next(make_record(1, minutes=0)).startswith("runs tiny.yaml: 3 runs left")
    assert [*make_record(1)][-1] == "in all: finished"
    assert all(row["address"] for row in made())


def test_runs_of_another_version_that_lie_here_are_not_recorded(grid, monkeypatch):
    assert [*make_record(1)][-1] == "in all: finished"
    shutil.rmtree(RECORD)
    monkeypatch.setattr(run, "NUMERICS", run.NUMERICS + 1)
    assert next(make_record(1, minutes=0)).startswith("runs tiny.yaml: 4 runs left")
    monkeypatch.setattr(Runner, "run", lambda _, tasks: iter(()))
    assert [*make_record(1)][-1].startswith("in all: 4 runs left")
    assert not RECORD.exists()


def test_recorded_runs_of_another_backbone_are_done_again(grid):
    assert [*make_record(1)][-1] == "in all: finished"
    forget_results()
    recipe = grid["backbones"]["tiny"] | {"epochs": 2}
    write(grid | {"backbones": {"tiny": recipe}})
    assert next(make_record(1, minutes=0)).startswith("runs tiny.yaml: 4 runs left")


def test_a_step_that_fails_stops_no_other(grid):
    Path("broken.yaml").write_text("rounds: 3\n")
    module.STEPS.write_text("- [runs, broken.yaml, 36]\n- [runs, tiny.yaml, 36]\n")
    write(grid | {"methods": ["fedavg", {"type": "fedavg", "name": "far", "eta_g": 1e30}]})
    lines = make_record(1)
    broken, failed, left, _ = itertools.islice(lines, 4)
    with pytest.raises(ValueError, match="be done: runs broken.yaml, runs tiny.yaml;"):
        next(lines)
    assert broken.startswith("runs broken.yaml: the config has an unknown key 'rounds'")
    assert failed.startswith("runs tiny.yaml: 2 run(s) of 'tiny' failed")
    assert left.startswith("runs tiny.yaml: 2 runs left")


def test_searches_of_the_published_list_come_before_runs_with_their_values():
    searched = set()
    for kind, name, seconds in read_yaml_file(places.shipped("config/record.yaml")):
        raw = merged([name])
        tuned = raw.get("tuned") or []
        files = [tuned] if isinstance(tuned, str) else tuned
        needed = {Path(file).parent.name for file in files}
        if kind == "search":
            searched.add(raw["experiment"])
        assert needed <= searched
        assert seconds > 0
    assert {*places.ARENAS} <= searched
