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

IDENTITY = ["experiment", "dataset", "clients", "skew", "method", "seed"]


def read(folder: Path, name: str) -> list[dict]:
    return pq.read_table(folder / f"{name}.parquet").to_pylist()


@pytest.fixture(params=["without quarters", "with quarters"])
def grid(request, written, summary_dir, with_quarters, quarters_dir):
    """What was put into runs, and the folder of their summary."""
    if request.param == "with quarters":
        return with_quarters, quarters_dir
    return written, summary_dir


def test_every_run_is_a_row_in_order_with_the_numbers_of_its_result(grid) -> None:
    made, folder = grid
    plan, rows = made.plan, read(folder, "runs")
    assert len(rows) == len(plan.methods) * len(plan.skews) * len(plan.seeds)
    assert rows == sorted(rows, key=run_order)
    for name in ("runs", "rounds", "clients", "timings"):
        assert pq.read_schema(folder / f"{name}.parquet").names[:6] == IDENTITY
    for row in rows:
        truth = made.truth.get((row["dataset"], row["skew"], row["method"], row["seed"]))
        if truth is None:
            assert row["status"] == "failed" and row["last_personal_accuracy"] is None
            continue
        for at, values in truth.items():
            assert {f"{at}_{key}": row[f"{at}_{key}"] for key in values} == {
                f"{at}_{key}": value for key, value in values.items()
            }


def test_differences_are_paired_tests_per_cell(grid) -> None:
    made, folder = grid
    rows = read(folder, "differences")
    group = {"expected_accuracy", "expected_accuracy_a", "expected_accuracy_b"}
    group |= {"expected_worst_decile"}
    own = {"personal_accuracy", "personal_worst_decile"}
    assert {row["metric"] for row in rows if row["rival"] == "local-only"} == (
        own | group if made.plan.quarters else own
    )
    assert {row["at"] for row in rows} == {
        "selected",
        "quarter" if made.plan.quarters else "last",
    }
    for row in rows:
        ours, theirs = (
            {
                seed: values[row["at"]][row["metric"]]
                for (_, skew, name, seed), values in made.truth.items()
                if (skew, name) == (row["skew"], method)
            }
            for method in ("fedsdg", row["rival"])
        )
        pairs = np.array([(ours[seed], value) for seed, value in theirs.items()])
        expected = stats.ttest_rel(*pairs.T)
        assert row["n"] == len(theirs)
        assert row["mean"] == pytest.approx((pairs[:, 0] - pairs[:, 1]).mean())
        assert row["p"] == pytest.approx(expected.pvalue)
        assert row["low"] == pytest.approx(expected.confidence_interval().low)


def test_failed_runs_stay_as_rows_with_their_error(summary_dir) -> None:
    place = "digits/clients~12/{}/{}/seed~{}".format
    named = failed_runs(summary_dir)
    krum, fedavg = place("dirichlet~0.1", "krum", 1), place("dirichlet~1.0", "fedavg", 2)
    assert list(named) == [krum, fedavg]
    assert named[krum].startswith("FloatingPointError") and "not finite" in named[krum]
    assert "no result.json" in named[fedavg]


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
    summarise(written.runs, tmp_path, wanted)
    shutil.rmtree(written.runs / "digits/clients~12/iid")
    rows = {row["method"]: (row["status"], row["error"]) for row in read(tmp_path, "runs")}
    because = "the run left no result.json"
    assert rows == {"fedsdg": ("failed", because), "fedavg": ("not run", None)}
    assert failed_runs(tmp_path) == {wanted[0]: because, wanted[1]: "not run"}


def test_rounds_and_clients_keep_every_record(written, summary_dir) -> None:
    plan = written.plan
    assert len(read(summary_dir, "rounds")) == len(written.truth) * plan.rounds
    clients = Summary(summary_dir).frame("clients")
    last = clients[clients["round"] == plan.rounds].groupby(["skew", "method", "seed"])
    for place, own in last["test_accuracy"]:
        lowest = np.sort(own)[: math.ceil(len(own) / 10)]
        assert len(own) == plan.clients
        truth = written.truth["digits", *place]["last"]
        assert lowest.mean() == pytest.approx(truth["personal_worst_decile"])
    assert set(clients.dropna(subset=["gates"])["method"]) == {"fedsdg"}


def test_a_failed_run_counts_nowhere_even_if_it_left_numbers() -> None:
    place = {"experiment": "e", "dataset": "d", "clients": 2, "skew": "iid"}
    values = {f"{at}_{metric}": 0.5 for at in ("last", "selected") for metric in METRICS}
    rows = [
        {**place, **values, "method": method, "seed": seed, "status": status}
        for method in ("fedsdg", "krum")
        for seed, status in ((0, "ok"), (1, "ok"), (2, "failed" if method == "krum" else "ok"))
    ]
    assert {row["n"] for row in differences(rows, "fedsdg")} == {2}
    assert differences(rows, "ditto") == [], "nor is there one without the subject"


def test_only_timings_differ_between_two_computations(make_runs, tmp_path) -> None:
    for name, seconds in (("a", 1.0), ("b", 2.0)):
        written = make_runs(name=f"{name}/synthetic", seeds=(0, 1), seconds=seconds)
        summarise(written.runs, tmp_path / name)
    for name in ("runs", "rounds", "clients", "timings", "differences"):
        first, second = (tmp_path / turn / f"{name}.parquet" for turn in "ab")
        assert (first.read_bytes() == second.read_bytes()) == (name != "timings"), name


def test_folders_without_runs_and_misnamed_ones_are_errors(make_runs, tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="train first"):
        summarise(tmp_path, tmp_path / "summary")
    written = make_runs(methods=("krum",), seeds=(0,))
    (written.runs / "digits/clients~12/dirichlet~0.1/krum/seed~x").mkdir()
    with pytest.raises(ValueError, match="seed~x"):
        summarise(written.runs, tmp_path / "summary")


def test_columns_of_some_runs_are_null_in_the_others(summary_of) -> None:
    """Simulated time, attackers and the like: where no run has them, there is no such column."""
    one = {"round": 1, "evaluated": True}
    attacker = {"round": 1, "client": 0, "participated": True, "attacker": True}
    folder = summary_of(
        [
            Run("fedavg", 0, rounds=[one]),
            Run("krum", 0, rounds=[one | {"idle_seconds": None}]),
            Run("krum", 1, rounds=[one | {"idle_seconds": 2.5, "arrived": 4}], rows=[attacker]),
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


def table(length: int) -> pa.Table:
    rows = [{"round": i, "gates": [float(i)] if i % 2 else None} for i in range(length)]
    return pa.Table.from_pylist(rows, OWN)


@pytest.mark.parametrize("lengths", [[5, 6], [4, 4], [0], [4, 0, 9, 1, 2]])
def test_a_file_written_in_groups_is_that_of_all_rows_at_once(
    tmp_path, monkeypatch, lengths
) -> None:
    """Groups are full but the last."""
    monkeypatch.setattr(pq, "write_table", partial(pq.write_table, row_group_size=4))
    groups = list(in_groups(map(table, lengths), 4))
    assert [len(group) for group in groups[:-1]] == [4] * (len(groups) - 1)
    assert all(column.num_chunks <= 1 for group in groups for column in group.columns)
    write_tables(tmp_path / "groups", groups, OWN)
    rows = [row for n in lengths for row in table(n).to_pylist()]
    write_parquet(tmp_path / "whole", rows, OWN)
    assert (tmp_path / "groups").read_bytes() == (tmp_path / "whole").read_bytes()
