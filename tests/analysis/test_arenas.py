"""Several arenas as one: which methods and seeds they have in common, and what is written."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedsdg.analysis.across import write_across
from fedsdg.analysis.arenas import read_arenas
from fedsdg.analysis.summarise import summarise
from fedsdg.cli.main import main

from .conftest import Run, write_run

METRIC = "expected_accuracy"
CLIENTS = 4


def run(method: str, seed: int, accuracy: float, skew: str, clients: bool = True) -> Run:
    """Twelve rounds at one accuracy; the clients lie 0.03, 0.01 above and below it."""
    steps = np.array([-0.03, -0.01, 0.01, 0.03])
    metrics = {METRIC: accuracy, "expected_worst_decile": accuracy, "val_accuracy": accuracy}
    rounds = [
        {"round": r, "evaluated": True, "bytes_up": 1_000_000, "bytes_down": 0, "local_steps": 1}
        | metrics
        for r in range(1, 13)
    ]
    rows = [
        {"round": r, "client": k, "participated": True, METRIC: accuracy + steps[k]}
        for r in range(1, 13)
        for k in range(CLIENTS)
    ]
    quarter = {"round": 12, "evaluations": 3} | metrics
    return Run(method, seed, skew=skew, clients=CLIENTS, quarter=quarter, last=metrics,
               rounds=rounds, rows=rows if clients else [])  # fmt: skip


def level(method: str, seed: int, skew: str) -> float:
    base = {"fedsdg": 0.8, "fedavg-uniform": 0.7, "local-only": 0.6, "krum": 0.5}[method]
    return base + 0.01 * seed + (0.05 if skew == "iid" else 0.0)


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> Path:
    """Two arenas: of ``one`` two cells and six seeds, of ``two`` one cell and five."""
    folder = tmp_path_factory.mktemp("arenas")
    cells = {"one": {"iid": range(6), "dirichlet~0.3": range(6)}, "two": {"iid": range(1, 6)}}
    for arena, skews in cells.items():
        for skew, seeds in skews.items():
            for method in ("fedsdg", "fedavg-uniform", "local-only", "krum", "centralised"):
                if method == "krum" and arena == "two":
                    continue
                for seed in seeds:
                    known = "krum" if method == "centralised" else method
                    one = run(method, seed, level(known, seed, skew), skew)
                    write_run(folder / "runs" / arena, one)
        summarise(folder / "runs" / arena, folder / "records" / arena)
    return folder / "records"


def test_methods_and_seeds_are_those_that_all_cells_have(records) -> None:
    arenas = read_arenas(records, ["one", "two"], METRIC)
    assert arenas.methods == ("fedsdg", "fedavg-uniform", "local-only")  # neither Krum nor ceiling
    titles = {task.title: task.seeds for task in arenas.tasks}
    assert titles == {
        "one: α = 0.3": (0, 1, 2, 3, 4),
        "one: IID": (0, 1, 2, 3, 4),
        "two: IID": (1, 2, 3, 4, 5),
    }
    expected = [[level("fedsdg", seed, task.cell.skew) for seed in task.seeds]
                for task in arenas.tasks]  # fmt: skip
    assert arenas.scores("fedsdg") == pytest.approx(np.array(expected))


@pytest.fixture(scope="module")
def written(records, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    paths = write_across(["one", "two"], records, folder / "t", folder / "f")
    assert all(path.is_file() for path in paths)
    return folder


def test_the_table_says_what_the_numbers_are(written) -> None:
    """FedSDG's fifteen scores by hand: ⌊15/4⌋ = 3 fall away on each side, nine are left."""
    hundredths = [*range(80, 85), *range(85, 90), *range(86, 91)]
    scores = sorted(score / 100 for score in hundredths)
    table = pd.read_csv(written / "t/across.csv").set_index("method")
    mean = table.loc["fedsdg", "interquartile mean, value (%)"]
    assert mean == pytest.approx(100 * sum(scores[3:12]) / 9, abs=1e-4)
    rivals = table["probability of improvement, value"]
    assert math.isnan(rivals["fedsdg"])
    assert (rivals["fedavg-uniform"], rivals["local-only"]) == (1, 1)
    text = (written / "t/across.md").read_text("utf-8")
    assert "5 seeds in each of 3 cells" in text
    assert "without width" in text  # of probabilities that are one
    assert "\\begin{tabular}" in (written / "t/across.tex").read_text("utf-8")


def test_the_targets_count_the_seeds_that_never_get_there(written) -> None:
    """All lie still: who is at 95 % of FedAvg's mean is there at once, the others never are."""
    table = pd.read_csv(written / "t/to_target.csv").set_index(["arena", "skew", "method"])
    target = 0.95 * np.mean([level("fedavg-uniform", seed, "iid") for seed in range(6)])
    assert table.loc[("one", "iid", "fedsdg"), "target (%)"] == pytest.approx(100 * target)
    assert table.loc[("one", "iid", "fedsdg"), ["seeds there", "rounds, median"]].tolist() == [6, 1]
    there = sum(level("local-only", seed, "iid") >= target for seed in range(6))
    assert table.loc[("one", "iid", "local-only"), "seeds there"] == there == 0
    assert table.loc[("one", "iid", "local-only"), "rounds, median"] == math.inf
    assert "\\> 12" in (written / "t/to_target.md").read_text("utf-8")


def test_the_sidecar_has_the_numbers_that_are_drawn_and_their_sources(written, records) -> None:
    facts = json.loads((written / "f/across.json").read_text("utf-8"))
    assert facts["arenas"] == ["one", "two"] and facts["seeds"] == 5
    assert "5 seeds in each of 3 cells" in facts["caption"]
    assert {Path(file).name for file in facts["inputs"]} >= {"runs.parquet", "clients.parquet"}
    profile = facts["numbers"]["fedsdg"]["profile"]
    at = profile["thresholds"].index(0.85)
    # 15 runs of four clients, those above 0.85 counted one by one.
    clients = [
        level("fedsdg", seed, skew) + step
        for skew, seeds in (("dirichlet~0.3", range(5)), ("iid", range(5)), ("iid", range(1, 6)))
        for seed in seeds
        for step in (-0.03, -0.01, 0.01, 0.03)
    ]
    above = sum(round(accuracy, 9) > 0.85 for accuracy in clients)
    equal = sum(round(accuracy, 9) == 0.85 for accuracy in clients)
    # What is equal on paper may be a hair above it in floating point.
    assert above / 60 - 1e-6 <= profile["share"][at] <= (above + equal) / 60 + 1e-6


def test_the_same_records_give_the_same_bytes(written, records, tmp_path) -> None:
    write_across(["one", "two"], records, tmp_path)
    for name in ("across.csv", "across.md", "to_target.csv"):
        assert (tmp_path / name).read_bytes() == (written / "t" / name).read_bytes()
    for name in ("across.pdf", "across.svg", "across.png"):
        assert (tmp_path / name).read_bytes() == (written / "f" / name).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["one", "tow"], "there is no record of 'tow'"),
        (["one", "one"], "'one' is named twice"),
        (["one", "--metric", "expected_acuracy"], "did you mean 'expected_accuracy'"),
        (["one", "--metric", "expected_accuracy_a"], "no method has 'expected_accuracy_a'"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(
    records, tmp_path, capsys, arguments, said
) -> None:
    place = ["--records", str(records), "--output", str(tmp_path / "out")]
    assert main(["render", "across", "--experiments", *arguments, *place]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_command_prints_the_table_and_where_everything_lies(records, tmp_path, capsys) -> None:
    place = ["--records", str(records), "--output", str(tmp_path / "out")]
    assert main(["render", "across", "--experiments", "two", *place]) == 0
    out = capsys.readouterr().out
    assert "P(FedSDG is better)" in out and str(tmp_path / "out" / "across.png") in out


def test_a_metric_that_no_single_client_has_is_shown_without_profiles(records, tmp_path) -> None:
    write_across(["two"], records, tmp_path, metric="expected_worst_decile")
    facts = json.loads((tmp_path / "across.json").read_text("utf-8"))
    assert all(one["profile"] is None for one in facts["numbers"].values())
    assert "worst decile" in (tmp_path / "across.md").read_text("utf-8")
