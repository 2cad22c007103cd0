"""Runs become summaries and records: the same bytes in pieces as at once, whole or not at all."""

import json
import shutil

import pandas as pd
import pyarrow.parquet as pq
import pytest

from fedsdg.analysis import gather
from fedsdg.analysis.gather import failed_runs, join, keep_record, summarise
from fedsdg.analysis.records import Record
from fedsdg.files import changed_file, read_json, write_json
from fedsdg.files.places import run_below
from tests.analysis.conftest import (
    LEVELS,
    METHODS,
    contents,
    record_of,
    run_folder,
    summary_of,
    write_run,
)

RUNS = [(method, seed) for method in LEVELS for seed in range(5)]


@pytest.fixture
def root(made, tmp_path):
    """The experiment, in which everything may be changed."""
    return shutil.copytree(made, tmp_path / "copy")


def change(folder, **facts):
    file = folder / "result.json"
    write_json(file, json.loads(file.read_text()) | facts)


def test_a_summary_has_the_rows_that_its_runs_recorded(made):
    summary = made / "results/summary/made"
    runs = pd.read_parquet(summary / "runs.parquet")
    assert runs["method"].tolist() == [m for m in METHODS for _ in range(5)], "in their order"
    assert runs["selected_accuracy"].max() == 0.94
    assert runs["error"].isna().all()
    own = pq.read_table(run_folder(made, "fedsdg", 3) / "clients.parquet").to_pylist()
    rows = pd.read_parquet(summary / "clients.parquet").query("method == 'fedsdg' and seed == 3")
    gates = [pytest.approx(row["gates"], rel=2**-16) for row in own]
    assert rows["gates"].map(list).tolist() == gates
    assert own[0]["train_loss"] == pytest.approx(1 / 3)
    assert set(rows["train_loss"]) == {round(2**17 / 3) / 2**17}
    timings = pd.read_parquet(summary / "timings.parquet")
    assert set(timings["wall_seconds"]) == {3.0}
    assert set(timings["aggregate_seconds"]) == {0.5, round(0.002 * 2**24) / 2**24}
    assert read_json(summary / "methods.json") == METHODS


def test_provenance_covers_every_run_once(made):
    entries = read_json(made / "results/summary/made/provenance.json")
    assert [entry["machine"] for entry in entries] == ["m0", "m1"]
    assert [len(entry["runs"]) for entry in entries] == [9, 6]
    assert (entries[0]["first"], entries[0]["last"]) == ("2026-01-01", "2026-02-05")
    assert "wall_seconds" not in entries[0]


def test_the_same_runs_give_the_same_bytes(root):
    before = contents(root / "results/summary/made")
    summary_of(root, reversed(RUNS))
    assert contents(root / "results/summary/made") == before


def test_failed_and_missing_runs_are_rows(root, tmp_path):
    change(run_folder(root, "fedavg", 1), status="failed", error="loss is NaN")
    (run_folder(root, "fedavg", 2) / "result.json").unlink()
    shutil.rmtree(run_folder(root, "fedavg", 3))
    folders = [run_folder(root, "fedavg", seed) for seed in range(5)]
    summarise(folders, tmp_path / "summary", METHODS)
    errors = {run[-1]: error for run, error in failed_runs(tmp_path / "summary").items()}
    assert errors == {"1": "loss is NaN", "2": "the run left no result.json", "3": "not run"}
    opened = Record(tmp_path / "summary")
    assert len(opened.runs) == 5
    assert opened.finished["seed"].tolist() == [0, 4]


def test_a_record_has_all_that_its_pages_need(made):
    record = record_of(made)
    assert changed_file(record) is None
    names = set(contents(record))
    assert {"backbones/tiny.json", "main.csv", "main.md", "methods.json"} <= names
    assert not [name for name in names if name.endswith(".tex")]
    pages = read_json(record / "pages.json")
    assert pages == {"tables": ["main"], "figures": ["differences"]}, "of a search there is no data"
    hashed = {line.split("  ")[1] for line in (record / "SHA256SUMS").read_text().splitlines()}
    assert hashed == {name for name in names if name.endswith((".parquet", ".json"))
                      and "/" not in name}  # fmt: skip


def test_partitions_and_values_of_a_search_are_kept(root):
    file = root / "results/summary/made/partitions/digits/clients~2/iid/seed~0.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"")
    (record_of(root) / "search.json").write_text('{"methods": {}}')
    (record_of(root) / "tuned.yaml").write_text("methods: {}\n")
    keep_record(root / "results/summary/made", record_of(root))
    files = {name for name in contents(record_of(root)) if "/" in name}
    assert files == {"backbones/tiny.json", "partitions/digits/clients~2/iid/seed~0.parquet"}
    assert (record_of(root) / "tuned.yaml").read_text() == "methods: {}\n"


def in_order(record):
    """Return what a record holds, rows in the order of runs instead of that of their coming."""
    files = contents(record)
    for name in ("rounds", "clients", "timings"):
        rows = pd.read_parquet(record / f"{name}.parquet")
        rows = rows.sort_values(["method", "seed", "round"], kind="stable", ignore_index=True)
        files[f"{name}.parquet"] = rows.to_json().encode()
    del files["SHA256SUMS"]
    return files


@pytest.mark.parametrize(
    "pieces",
    [
        [RUNS[:6], RUNS[6:]],
        [RUNS[::2], RUNS[1::2], [("fedsdg", 9)]],
        [RUNS[9:], RUNS],
    ],
)
def test_in_pieces_a_record_is_that_made_at_once(tmp_path, monkeypatch, pieces):
    monkeypatch.setattr(gather, "ROWS_OF_A_GROUP", 7)
    for runs in pieces:
        keep_record(summary_of(tmp_path, runs), record_of(tmp_path), merge=True)
    there = in_order(record_of(tmp_path))
    everything = list(dict.fromkeys(run for runs in pieces for run in runs))
    keep_record(summary_of(tmp_path, everything), record_of(tmp_path))
    assert there == in_order(record_of(tmp_path))


@pytest.mark.parametrize("killed", [False, True], ids=["before", "within"])
def test_runs_that_were_not_run_here_stay_as_they_were(root, killed):
    before = in_order(record_of(root))
    if killed:  # between the two renames of an earlier merge
        record_of(root).rename(record_of(root).with_name(".made.replaced"))
    for seed in range(5):
        shutil.rmtree(run_folder(root, "fedavg", seed))
    folders = [run_folder(root, *run) for run in RUNS]
    summarise(folders, root / "results/summary/made", METHODS)
    keep_record(root / "results/summary/made", record_of(root), merge=True)
    assert in_order(record_of(root)) == before
    keep_record(root / "results/summary/made", record_of(root))
    assert len(Record(record_of(root)).finished) == 10


def mixed(root, **facts):
    """Merge a run made here, whose result has other facts, into the record."""
    write_run(run_folder(root, "fedsdg", 7), "fedsdg", 7, **facts)
    keep_record(summary_of(root, [("fedsdg", 7)]), record_of(root), merge=True)


CONFIG = {"method": "fedsdg", "backbone": "tiny", "seed": 7, "parameters": {}}
TRAINING = {"threads": 1, "eta_g": 0.1}


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"backbone_hash": "c"}, "backbone_hash is 'b' in it, but 'c' here"),
        ({"config": CONFIG | {"training": TRAINING | {"threads": 2}}}, "training.threads is 1"),
        ({"config": CONFIG | {"training": TRAINING | {"eta_g": 0.2}}}, "training.eta_g is 0.1"),
        ({"config": CONFIG | {"training": TRAINING, "parameters": {"m": 1}}}, "parameters.m is N"),
        ({"config": CONFIG | {"training": TRAINING, "federation": {"rounds": 9}}}, "federation is"),
    ],
)
def test_settings_are_not_mixed(root, facts, message):
    before = contents(record_of(root))
    with pytest.raises(ValueError, match=f"cannot join the record of 'made': {message}"):
        mixed(root, **facts)
    assert contents(record_of(root)) == before
    assert [folder.name for folder in record_of(root).parent.iterdir()] == ["made"]


def test_a_method_may_have_rates_of_its_own(root):
    config = CONFIG | {"training": TRAINING | {"eta_g": 0.7}}
    write_run(run_folder(root, "fedavg", 7), "fedavg", 7)
    before = read_json(run_folder(root, "fedavg", 7) / "result.json")["config"]
    assert before["training"]["eta_g"] != config["training"]["eta_g"]
    folder = root / "results/runs/made/digits/clients~2/iid@half/new/seed~7"
    shutil.copytree(run_folder(root, "fedavg", 7), folder)
    change(folder, config=config | {"method": "new"})
    summarise([folder], root / "results/summary/made", METHODS)
    keep_record(root / "results/summary/made", record_of(root), merge=True)
    assert "new" in set(Record(record_of(root)).runs["method"])


@pytest.mark.parametrize("name", ["rounds.parquet", "runs.parquet", "provenance.json"])
def test_a_record_that_is_damaged_stays_as_it_is(root, name):
    file = record_of(root) / name
    (record_of(root) / "SHA256SUMS").unlink()
    file.write_bytes(file.read_bytes()[:-60])
    before = contents(record_of(root))
    with pytest.raises(ValueError, match=f"{name} is (damaged|not valid JSON)"):
        mixed(root)
    assert contents(record_of(root)) == before


def test_without_its_source_there_is_no_record(root, tmp_path):
    summary = root / "results/summary/made"
    with pytest.raises(FileNotFoundError, match="no summary of 'mode'.*did you mean 'made'"):
        keep_record(summary.with_name("mode"), record_of(root))
    (root / "results/backbones/tiny.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"tiny\.json is missing"):
        keep_record(summary, record_of(root))
    change(run_folder(root, "fedavg", 1), status="failed", error="loss is NaN")
    with pytest.raises(ValueError, match=r"1 run\(s\) of 'made' failed, first .*loss is NaN"):
        keep_record(summary_of(root, RUNS), record_of(root))


def test_what_is_no_run_of_the_experiment_is_refused(root, tmp_path):
    with pytest.raises(FileNotFoundError, match="no run to summarise"):
        summarise([], tmp_path / "s", METHODS)
    change(run_folder(root, "fedavg", 1), experiment="other")
    with pytest.raises(ValueError, match="are of the experiments made, other"):
        summary_of(root, RUNS)
    folder = run_folder(root, "fedavg", 0)
    with pytest.raises(ValueError, match=r"seed-0 is no folder of a run; its name should end w"):
        summarise([folder.with_name("seed-0")], tmp_path / "s", METHODS)
    (folder / "result.json").write_text("{")
    with pytest.raises(ValueError, match=r"result\.json is not valid JSON"):
        summarise([folder], tmp_path / "s", METHODS)
    write_run(folder, "fedavg", 0)
    (folder / "clients.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"clients\.parquet is damaged"):
        summarise([folder], tmp_path / "s", METHODS)


def test_chosen_runs_of_two_records_are_joined(made, tmp_path):
    other = tmp_path / "other"
    keep_record(summary_of(other, [("fedavg", 9)]), record_of(other))
    rows = [pd.read_parquet(record_of(one) / "runs.parquet") for one in (made, other)]
    wanted, others = ([run_below(row) for row in own.to_dict("records")] for own in rows)
    wanted = [run for run in wanted if "/fedsdg/" in run]
    join([(record_of(made), wanted), (record_of(other), others)], tmp_path / "both")
    both = Record(tmp_path / "both")
    assert both.runs[["method", "seed"]].to_numpy().tolist() == [
        *(["fedsdg", seed] for seed in range(5)),
        ["fedavg", 9],
    ]
    assert len(both.rows("clients", ["gates"])) == 6 * 16
    covered = [run for entry in both.json("provenance.json") for run in entry["runs"]]
    assert len(covered) == len(set(covered)) == 6
    assert list(both.methods) == ["fedavg", "fedsdg"]
