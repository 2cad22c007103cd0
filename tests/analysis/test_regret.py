"""Regret: by hand on a few rows, against brute force, and what is written."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedsdg.analysis.regret import write_across
from fedsdg.analysis.summarise import summarise
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.views.regret import best_by_seed, regret, regrets
from fedsdg.cli.main import main

from .conftest import Run, write_run
from .test_comparisons import spread

METRIC = "expected_accuracy"


def write_arena(folder: Path, arena: str, values: dict[str, dict[str, list[float]]]) -> Path:
    """``values``: skew → method → accuracy by seed; "known-…" methods are told the groups."""
    for skew, methods in values.items():
        for method, own in methods.items():
            for seed, value in enumerate(own):
                last = {METRIC: value}
                parameters = {"assignment": "known"} if method.startswith("clustered") else {}
                config = {"parameters": parameters}
                one = Run(method, seed, skew=skew, last=last, config=config,
                          rounds=[{"round": 1}], quarter=last | {"evaluations": 3})  # fmt: skip
                write_run(folder / "runs" / arena, one)
    summarise(folder / "runs" / arena, folder / "records" / arena)
    return folder / "records" / arena


def of(folder: Path, skew: str = "iid") -> pd.DataFrame:
    summary = Summary(folder)
    cell = next(cell for cell in summary.cells() if cell.skew == skew)
    return regret(summary, cell, METRIC).set_index("method")


def test_the_best_is_chosen_on_one_half_and_measured_on_the_other(tmp_path) -> None:
    """FedSDG is best on seeds 0 and 1, Ditto on 2 and 3: each is judged by the other's choice."""
    values = {
        "fedsdg": [0.9, 0.9, 0.6, 0.6],
        "ditto": [0.7, 0.7, 0.8, 0.8],
        "krum": [0.5, 0.5, 0.5, 0.5],
    }
    rows = of(write_arena(tmp_path, "one", {"iid": values}))
    # On seeds 0 and 1 the rival is Ditto (0.7), on 2 and 3 FedSDG (0.6).
    expected = {"fedsdg": (-0.2 + 0) / 2, "ditto": (0 - 0.2) / 2, "krum": (0.2 + 0.1) / 2}
    assert rows["regret"].to_dict() == pytest.approx(expected)
    assert set(rows["n"]) == {4}


def test_choosing_among_equals_costs_nothing_on_average() -> None:
    """Ten rows of noise: the plain best of them stands above the mean of all, this one does not."""
    rng = np.random.default_rng(0)
    plain, crossed = [], []
    for _ in range(2000):
        x = rng.normal(0.7, 0.05, (10, 6))
        values = {f"row-{k}": dict(enumerate(own)) for k, own in enumerate(x)}
        best = best_by_seed(values, range(6))
        crossed.append(np.mean([*best.values()]) - 0.7)
        plain.append(x.mean(axis=1).max() - 0.7)
    assert np.mean(crossed) == pytest.approx(0.0, abs=0.002)
    assert np.mean(plain) > 0.02


def test_oracles_are_never_the_best_and_equal_rows_count_once(tmp_path) -> None:
    values = {
        "fedsdg": [0.8, 0.81, 0.79, 0.8, 0.8],
        "fedsdg-again": [0.8, 0.81, 0.79, 0.8, 0.8],
        "krum": [0.7, 0.72, 0.68, 0.7, 0.71],
        "clustered": [0.9, 0.9, 0.9, 0.9, 0.9],
        "centralised": [0.95, 0.95, 0.95, 0.95, 0.95],
    }
    rows = of(write_arena(tmp_path, "one", {"iid": values}))
    assert rows.loc["clustered", "oracle"] and rows.loc["centralised", "oracle"]
    assert rows.loc["clustered", "regret"] == pytest.approx(-0.1, abs=0.01)
    assert rows.loc["fedsdg", "regret"] == rows.loc["fedsdg-again", "regret"] == 0.0
    assert rows["tied"].to_dict() == {
        "fedsdg": True,
        "fedsdg-again": True,
        "krum": False,
        "clustered": False,
        "centralised": False,
    }


def test_a_row_that_cannot_be_told_from_the_best_is_marked(tmp_path) -> None:
    values = {
        "fedsdg": [0.80, 0.82, 0.78, 0.81, 0.79],
        "ditto": [0.79, 0.83, 0.77, 0.80, 0.80],
        "krum": [0.60, 0.62, 0.58, 0.61, 0.59],
    }
    rows = of(write_arena(tmp_path, "one", {"iid": values}))
    assert rows["tied"].to_dict() == {"fedsdg": True, "ditto": True, "krum": False}


def test_rows_are_told_from_the_best_by_holms_one_sided_tests(tmp_path) -> None:
    """One row with p = 0.03 is below the best; of two with that p neither is, at 5 %."""
    t = stats.t.isf(0.03, 4)
    best = np.array([0.8, 0.82, 0.78, 0.81, 0.79])
    below = [best - spread(t * 0.01 / 5**0.5, 0.01, 5, key=key) for key in (1, 2)]
    assert stats.ttest_rel(best, below[1], alternative="greater").pvalue == pytest.approx(0.03)
    two = {"fedsdg": best, "krum": below[0]}
    for name, values, tied in (
        ("two", two, {"fedsdg"}),
        ("copy", two | {"krum-again": below[0]}, {"fedsdg"}),  # counts once
        ("three", two | {"ditto": below[1]}, {"fedsdg", "krum", "ditto"}),
    ):
        listed = {method: own.tolist() for method, own in values.items()}
        rows = of(write_arena(tmp_path, name, {"iid": listed}))
        assert set(rows.index[rows["tied"]]) == tied, name


def test_a_row_that_lacks_a_seed_is_compared_and_not_chosen(tmp_path) -> None:
    values = {"fedsdg": [0.8, 0.8, 0.8], "ditto": [0.99, 0.99], "krum": [0.7, 0.7, 0.7]}
    rows = of(write_arena(tmp_path, "one", {"iid": values}))
    assert rows.loc["krum", "regret"] == pytest.approx(0.1)
    assert (rows.loc["ditto", "n"], rows.loc["ditto", "regret"]) == (2, pytest.approx(-0.19))


def test_a_row_with_more_seeds_than_others_is_not_the_only_one_to_choose_from(tmp_path) -> None:
    values = {"fedsdg": [0.8] * 3, "ditto": [0.75] * 3, "krum": [0.7] * 6}
    rows = of(write_arena(tmp_path, "one", {"iid": values}))
    assert rows["regret"].to_dict() == pytest.approx({"fedsdg": 0.0, "ditto": 0.05, "krum": 0.1})
    assert set(rows["n"]) == {3}


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> Path:
    """Two arenas, of three cells in all; Krum stands in two of them."""
    folder = tmp_path_factory.mktemp("arenas")
    rng = np.random.default_rng(1)

    def seeds(mean: float) -> list[float]:
        return (mean + rng.normal(0, 0.01, 5)).tolist()

    first = {skew: {"fedsdg": seeds(0.8), "fedavg": seeds(0.7), "krum": seeds(0.5)}
             for skew in ("iid", "dirichlet~0.3")}  # fmt: skip
    write_arena(folder, "one", first)
    write_arena(folder, "two", {"iid": {"fedsdg": seeds(0.6), "fedavg": seeds(0.7)}})
    return folder / "records"


def test_the_table_has_a_column_for_each_cell_and_the_largest(records, tmp_path) -> None:
    paths = write_across(["one", "two"], records, tmp_path / "t", tmp_path / "f")
    assert all(path.is_file() for path in paths)
    raw = pd.read_csv(tmp_path / "t/regret.csv")
    rows = regrets([Summary(records / name) for name in ("one", "two")], METRIC)
    assert raw["regret (percentage points)"].tolist() == pytest.approx(
        (100 * rows["regret"]).tolist(), rel=1e-5
    )
    lines = (tmp_path / "t/regret.md").read_text("utf-8").splitlines()
    krum = next(line for line in lines if line.startswith("| Krum"))
    assert krum.split("|")[-3].strip() == "–", "it does not stand in the second arena"
    largest = rows.groupby("method")["regret"].max()
    assert krum.split("|")[-2].strip() == f"{100 * largest['krum']:.1f}"
    facts = json.loads((tmp_path / "f/regret.json").read_text("utf-8"))
    assert facts["arenas"] == ["one", "two"] and len(facts["numbers"]) == len(rows)


def test_the_same_records_give_the_same_bytes(records, tmp_path) -> None:
    for name in ("a", "b"):
        write_across(["one", "two"], records, tmp_path / name)
    for name in ("regret.csv", "regret.md", "regret.pdf", "regret.png"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["one", "tow"], "there is no record of 'tow'"),
        (["one", "one"], "'one' is named twice"),
        (["one", "--metric", "expected_acuracy"], "did you mean 'expected_accuracy'"),
        (["one", "--metric", "expected_accuracy_a"], "no cell of one has a value of"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(
    records, arguments, said, tmp_path, capsys
) -> None:
    place = ["--records", str(records), "--output", str(tmp_path / "t")]
    assert main(["render", "across", "--experiments", *arguments, *place]) != 0
    message = capsys.readouterr().err.strip()
    assert said in message and "\n" not in message
    assert not (tmp_path / "t").exists()


def test_the_command_prints_the_table_and_where_everything_lies(records, tmp_path, capsys) -> None:
    place = ["--records", str(records), "--output", str(tmp_path / "out")]
    assert main(["render", "across", "--experiments", "two", *place]) == 0
    out = capsys.readouterr().out
    assert "two<br>IID" in out and str(tmp_path / "out" / "regret.png") in out
