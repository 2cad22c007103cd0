"""Regret: by hand on a few rows, against brute force, and what is written."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedsdg.analysis.regret import write_across
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.views.regret import best_by_seed, regret, regrets
from fedsdg.cli.main import main

from .conftest import Run, make_record
from .test_comparisons import spread

METRIC = "expected_accuracy"


def write_arena(folder: Path, arena: str, values: dict[str, dict[str, list[float]]]) -> Path:
    """``values``: skew → method → accuracy by seed; "clustered" ones are told the groups."""
    runs = []
    for skew, methods in values.items():
        for method, own in methods.items():
            known = {"assignment": "known"} if method.startswith("clustered") else {}
            for seed, value in enumerate(own):
                last = {METRIC: value}
                facts = {"last": last, "quarter": last | {"evaluations": 3}}
                facts |= {"rounds": [{"round": 1}], "config": {"parameters": known}}
                runs.append(Run(method, seed, skew=skew, **facts))
    return make_record(folder, arena, runs)


def of(folder: Path, values: dict[str, list[float]], name: str = "one") -> pd.DataFrame:
    summary = Summary(write_arena(folder, name, {"iid": values}))
    return regret(summary, summary.cells()[0], METRIC).set_index("method")


NEAR = {"fedsdg": [0.80, 0.82, 0.78, 0.81, 0.79], "krum": [0.60, 0.62, 0.58, 0.61, 0.59]}
HALVES = {"fedsdg": [0.9, 0.9, 0.6, 0.6], "ditto": [0.7, 0.7, 0.8, 0.8], "krum": [0.5] * 4}
ORACLES = {"clustered": [0.9] * 5, "centralised": [0.95] * 5}


@pytest.mark.parametrize(
    ("values", "regrets", "n", "tied"),
    [
        # The best is chosen on one half of the seeds and measured on the other: on seeds 0 and 1
        # the rival is Ditto (0.7), on 2 and 3 FedSDG (0.6).
        (HALVES, {"fedsdg": -0.1, "ditto": -0.1, "krum": 0.15}, 4, None),
        # Oracles are never the best; equal rows count once.
        (NEAR | ORACLES | {"fedsdg-again": NEAR["fedsdg"]},
         {"fedsdg": 0.0, "fedsdg-again": 0.0, "clustered": -0.1}, 5, ["fedsdg", "fedsdg-again"]),
        # A row that cannot be told from the best is marked.
        (NEAR | {"ditto": [0.79, 0.83, 0.77, 0.80, 0.80]}, {}, 5, ["ditto", "fedsdg"]),
        # A row that lacks a seed is compared, and not chosen.
        ({"fedsdg": [0.8] * 3, "ditto": [0.99] * 2, "krum": [0.7] * 3},
         {"krum": 0.1, "ditto": -0.19}, {"fedsdg": 3, "krum": 3, "ditto": 2}, None),
        # A row with more seeds than others is not the only one to choose from.
        ({"fedsdg": [0.8] * 3, "ditto": [0.75] * 3, "krum": [0.7] * 6},
         {"fedsdg": 0.0, "ditto": 0.05, "krum": 0.1}, 3, None),
    ],
)  # fmt: skip
def test_regret_is_below_the_best_other_row(tmp_path, values, regrets, n, tied) -> None:
    rows = of(tmp_path, values)
    found = rows["regret"].to_dict()
    assert {name: found[name] for name in regrets} == pytest.approx(regrets)
    assert rows["n"].to_dict() == (n if isinstance(n, dict) else dict.fromkeys(values, n))
    assert set(rows.index[rows["oracle"]]) == ({*ORACLES} & {*values})
    assert tied is None or sorted(rows.index[rows["tied"]]) == tied


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
        rows = of(tmp_path, listed, name)
        assert set(rows.index[rows["tied"]]) == tied, name


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
def test_what_cannot_be_compared_is_one_sentence(records, arguments, said, tmp_path, refused):
    place = ["--records", records, "--output", tmp_path / "t"]
    assert said in refused("render", "across", "--experiments", *arguments, *place)
    assert not (tmp_path / "t").exists()


def test_the_command_prints_the_table_and_where_everything_lies(records, tmp_path, capsys) -> None:
    place = ["--records", str(records), "--output", str(tmp_path / "out")]
    assert main(["render", "across", "--experiments", "two", *place]) == 0
    out = capsys.readouterr().out
    assert "two<br>IID" in out and str(tmp_path / "out" / "regret.png") in out
