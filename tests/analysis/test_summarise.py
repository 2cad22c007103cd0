"""Gathering runs: every run is a row, in one order, with the numbers that training wrote."""

import math
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from scipy import stats

from fedsdg.analysis.differences import differences
from fedsdg.analysis.summarise import failed_runs, in_groups, run_order, summarise
from fedsdg.analysis.summary import Summary
from fedsdg.files.records import METRICS, write_parquet, write_tables

from .conftest import Run

FILES = ("runs", "rounds", "clients", "timings", "differences")
IDENTITY = ["experiment", "dataset", "clients", "skew", "method", "seed"]


def read(folder: Path, name: str) -> list[dict]:
    return pq.read_table(folder / f"{name}.parquet").to_pylist()


def test_every_run_is_a_row_in_order(written, summary_dir) -> None:
    plan, rows = written.plan, read(summary_dir, "runs")
    assert len(rows) == len(plan.methods) * len(plan.skews) * len(plan.seeds)
    assert rows == sorted(rows, key=run_order)
    for name in ("runs", "rounds", "clients", "timings"):
        assert pq.read_schema(summary_dir / f"{name}.parquet").names[:6] == IDENTITY


def test_metrics_are_those_of_the_result_files(written, summary_dir) -> None:
    for row in read(summary_dir, "runs"):
        truth = written.truth.get((row["dataset"], row["skew"], row["method"], row["seed"]))
        for at in ("last", "selected"):
            for name in ("round", "personal_accuracy", "global_accuracy", "val_accuracy"):
                assert row[f"{at}_{name}"] == (truth[at][name] if truth else None)


def test_failed_runs_stay_as_rows_with_their_error(summary_dir) -> None:
    failed = {
        (row["skew"], row["method"], row["seed"]): row
        for row in read(summary_dir, "runs")
        if row["status"] == "failed"
    }
    assert set(failed) == {("dirichlet~0.1", "krum", 1), ("dirichlet~1.0", "fedavg", 2)}
    assert "loss is not finite" in failed["dirichlet~0.1", "krum", 1]["error"]
    assert "no result.json" in failed["dirichlet~1.0", "fedavg", 2]["error"]
    named = failed_runs(summary_dir)
    place = "digits/clients~12/{}/{}/seed~{}"
    assert list(named) == [place.format(*identity) for identity in failed]
    assert named[place.format("dirichlet~0.1", "krum", 1)].startswith("FloatingPointError")


def test_a_summary_of_one_seed_holds_its_rows_alone(summary_dir) -> None:
    alone, everything = Summary(summary_dir, seed=2), Summary(summary_dir)
    for name in ("rounds", "clients", "timings"):
        rows = everything.frame(name)
        assert alone.frame(name).equals(rows[rows["seed"] == 2].reset_index(drop=True)), name
    evaluated = alone.frame("rounds", ["seed", "evaluated"], where=pc.field("evaluated"))
    assert {*evaluated["seed"]} == {2} and evaluated["evaluated"].all()
    assert {run["seed"] for run in alone.runs} == {2}


def test_what_was_not_run_is_a_row_of_its_own_kind(written, tmp_path) -> None:
    """A grid of which a part has no folder; a folder without a result is a failure as before."""
    wanted = [f"digits/clients~12/iid/{method}/seed~0" for method in ("fedsdg", "fedavg")]
    (written.runs / wanted[0]).mkdir(parents=True)
    summarise(written.runs, tmp_path / "summary", wanted)
    shutil.rmtree(written.runs / "digits/clients~12/iid")
    rows = {row["method"]: row for row in read(tmp_path / "summary", "runs")}
    assert rows["fedsdg"]["status"] == "failed" and "no result" in rows["fedsdg"]["error"]
    assert rows["fedavg"]["status"] == "not run" and rows["fedavg"]["error"] is None
    assert failed_runs(tmp_path / "summary") == {
        wanted[0]: "the run left no result.json",
        wanted[1]: "not run",
    }


def test_rounds_and_clients_keep_every_record(written, summary_dir) -> None:
    plan = written.plan
    rounds = read(summary_dir, "rounds")
    assert len(rounds) == len(written.truth) * plan.rounds
    clients = read(summary_dir, "clients")
    last = [row for row in clients if row["round"] == plan.rounds]
    for (_, skew, method, seed), truth in written.truth.items():
        mine = [
            row["test_accuracy"]
            for row in last
            if (row["skew"], row["method"], row["seed"]) == (skew, method, seed)
        ]
        assert len(mine) == plan.clients
        lowest = np.sort(mine)[: math.ceil(len(mine) / 10)]
        assert lowest.mean() == pytest.approx(truth["last"]["personal_worst_decile"])
    assert {row["method"] for row in clients if row["gates"] is not None} == {"fedsdg"}


def test_differences_are_paired_tests_per_cell(written, summary_dir) -> None:
    rows = read(summary_dir, "differences")
    assert {row["metric"] for row in rows if row["rival"] == "local-only"} == {
        "personal_accuracy",
        "personal_worst_decile",
    }
    for row in rows:
        place = row["skew"], row["metric"], row["at"]
        ours = written.values(place[0], "fedsdg", *place[1:])
        theirs = written.values(place[0], row["rival"], *place[1:])
        missing = {("dirichlet~0.1", "krum"): 1, ("dirichlet~1.0", "fedavg"): 2}
        if (row["skew"], row["rival"]) in missing:
            ours = np.delete(ours, missing[row["skew"], row["rival"]])
        expected = stats.ttest_rel(ours, theirs)
        assert row["n"] == len(theirs)
        assert row["mean"] == pytest.approx((ours - theirs).mean())
        assert row["p"] == pytest.approx(expected.pvalue)
        assert row["low"] == pytest.approx(expected.confidence_interval().low)


def test_what_is_reported_are_the_last_quarter_and_the_selected_round(
    with_quarters, quarters_dir
) -> None:
    for row in read(quarters_dir, "runs"):
        truth = with_quarters.truth["digits", row["skew"], row["method"], row["seed"]]
        for at in ("last", "selected", "quarter"):
            for key, value in truth[at].items():
                assert row[f"{at}_{key}"] == value
        assert row["quarter_evaluations"] == 4
    rows = read(quarters_dir, "differences")
    assert {row["at"] for row in rows} == {"quarter", "selected"}
    assert {row["metric"] for row in rows} == {
        "expected_accuracy",
        "expected_accuracy_a",
        "expected_accuracy_b",
        "expected_worst_decile",
        "personal_accuracy",
        "personal_worst_decile",
        "global_accuracy",
    }
    for row in rows:
        ours, theirs = (
            with_quarters.values("iid", method, row["metric"], row["at"])
            for method in ("fedsdg", row["rival"])
        )
        assert row["mean"] == pytest.approx((ours - theirs).mean())


def test_a_failed_run_counts_nowhere_even_if_it_left_numbers() -> None:
    place = {"experiment": "e", "dataset": "d", "clients": 2, "skew": "iid"}
    values = {f"{at}_{metric}": 0.5 for at in ("last", "selected") for metric in METRICS}
    rows = [
        {**place, **values, "method": method, "seed": seed, "status": status}
        for method in ("fedsdg", "krum")
        for seed, status in ((0, "ok"), (1, "ok"), (2, "failed" if method == "krum" else "ok"))
    ]
    assert {row["n"] for row in differences(rows, "fedsdg")} == {2}


def test_one_seed_gives_means_without_intervals(make_runs, tmp_path) -> None:
    summarise(make_runs(seeds=(4,)).runs, tmp_path / "summary")
    rows = read(tmp_path / "summary", "differences")
    assert rows
    assert all(row["n"] == 1 and row["low"] is None and row["p"] is None for row in rows)
    assert all(math.isfinite(row["mean"]) for row in rows)


def test_without_the_subject_there_are_no_differences(make_runs, tmp_path) -> None:
    summarise(make_runs(methods=("krum", "fedavg")).runs, tmp_path / "summary")
    assert read(tmp_path / "summary", "differences") == []


def test_only_timings_differ_between_two_computations(make_runs, tmp_path) -> None:
    for name, seconds in (("a", 1.0), ("b", 2.0)):
        written = make_runs(name=f"{name}/synthetic", seconds=seconds)
        summarise(written.runs, tmp_path / name)
    equal = {
        name: (tmp_path / "a" / f"{name}.parquet").read_bytes()
        == (tmp_path / "b" / f"{name}.parquet").read_bytes()
        for name in FILES
    }
    assert equal == {name: name != "timings" for name in FILES}


def test_order_does_not_depend_on_when_a_folder_was_made(make_runs, tmp_path) -> None:
    written = make_runs()
    summarise(written.runs, tmp_path / "a")
    moved = written.runs / "digits" / "clients~12" / "dirichlet~0.1" / "fedsdg"
    shutil.move(moved, tmp_path / "aside")
    shutil.move(tmp_path / "aside", moved)
    summarise(written.runs, tmp_path / "b")
    assert (tmp_path / "a/runs.parquet").read_bytes() == (tmp_path / "b/runs.parquet").read_bytes()


def test_a_folder_without_runs_is_an_error(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="train first"):
        summarise(tmp_path, tmp_path / "summary")


def test_a_misnamed_seed_folder_is_named(make_runs, tmp_path) -> None:
    written = make_runs()
    (written.runs / "digits/clients~12/dirichlet~0.1/krum/seed~x").mkdir()
    with pytest.raises(ValueError, match="seed~x"):
        summarise(written.runs, tmp_path / "summary")


def test_columns_of_some_runs_are_null_in_the_others(summary_of) -> None:
    """Simulated time, attackers and the like: where no run has them, there is no such column."""
    folder = summary_of(
        [
            Run("fedavg", 0, rounds=[{"round": 1, "evaluated": True}]),
            Run("krum", 0, rounds=[{"round": 1, "evaluated": True, "idle_seconds": None}]),
            Run(
                "krum",
                1,
                rounds=[{"round": 1, "evaluated": True, "idle_seconds": 2.5, "arrived": 4}],
                rows=[{"round": 1, "client": 0, "participated": True, "attacker": True}],
            ),
        ]
    )
    rounds = read(folder, "rounds")
    assert [row["idle_seconds"] for row in rounds] == [None, None, 2.5]
    assert [row["arrived"] for row in rounds] == [None, None, 4]
    assert read(folder, "clients")[0]["attacker"] is True
    summary = Summary(folder)
    frame = summary.frame("rounds", ["round"], ["idle_seconds", "simulated_seconds"])
    assert list(frame.columns) == ["round", "idle_seconds", "simulated_seconds"]
    assert frame["simulated_seconds"].isna().all()
    assert summary.frame("rounds", ["round"])["round"].tolist() == [1, 1, 1]


OWN = pa.schema([("round", pa.int32()), ("gates", pa.list_(pa.float64()))])


def table(length: int, begin: int = 0) -> pa.Table:
    rows = [
        {"round": i, "gates": [float(i)] if i % 2 else None} for i in range(begin, begin + length)
    ]
    return pa.Table.from_pylist(rows, OWN)


@pytest.mark.parametrize("length", [1, 3, 7, 16, 100])
def test_groups_are_full_but_the_last_and_keep_every_row(length) -> None:
    lengths = [4, 0, 9, 1, 2]
    tables = [table(n, sum(lengths[:i])) for i, n in enumerate(lengths)]
    groups = list(in_groups(tables, length))
    full, rest = divmod(16, length)
    assert [len(group) for group in groups] == [length] * full + [rest] * (rest > 0)
    assert pa.concat_tables(groups) == pa.concat_tables(tables)
    assert all(column.num_chunks <= 1 for group in groups for column in group.columns)


@pytest.mark.parametrize("lengths", [[5, 6], [4, 4], [0]])
def test_a_file_written_in_groups_is_that_of_all_rows_at_once(
    tmp_path, monkeypatch, lengths
) -> None:
    monkeypatch.setattr(pq, "write_table", partial(pq.write_table, row_group_size=4))
    write_tables(tmp_path / "groups", in_groups(map(table, lengths), 4), OWN)
    rows = [row for n in lengths for row in table(n).to_pylist()]
    write_parquet(tmp_path / "whole", rows, OWN)
    assert (tmp_path / "groups").read_bytes() == (tmp_path / "whole").read_bytes()
