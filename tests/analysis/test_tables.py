"""Tables of made-up records, whose numbers are known, and of the committed ones."""

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedsdg.analysis.layout import Table, amount, points
from fedsdg.analysis.metrics import METRICS, metric
from fedsdg.analysis.records import records
from fedsdg.analysis.tables import TABLES, losses, paired, regret, table
from tests.analysis.small import ACCURACY, config, rows_of, run_row, write_record

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "results/reference"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_record(tmp_path_factory.mktemp("records") / "small")


def number(made, method, metric, at="selected", **where):
    rows = made.numbers
    keys = {"method": method, "metric": metric, "at": at} | where
    for name, value in keys.items():
        rows = rows[rows[name] == value]
    (row,) = rows.to_dict("records")
    return row


def test_main_has_means_and_intervals_of_scipy(small):
    made = table("main", small)
    row = number(made, "fedsdg", "accuracy")
    expected = stats.t.interval(0.95, 4, 92.0, stats.sem(ACCURACY["fedsdg"]))
    assert (row["n"], row["mean"]) == (5, pytest.approx(92))
    assert (row["low"], row["high"]) == pytest.approx(expected)
    assert number(made, "fedsdg", "accuracy", "end")["mean"] == pytest.approx(91)
    assert list(made.numbers)[:5] == ["experiment", "cell", "method", "metric", "at"]
    line = made.text.loc["fedsdg"]
    assert line["all clients"] == "**92.0 ± 2.0**"


def test_an_oracle_is_marked_and_never_the_best(small):
    line = table("main", small).text.loc["known"]
    assert line["Method"] == "Known clusters ‡"
    assert line["all clients"] == "99.0"


def test_failed_runs_are_notes(tmp_path):
    rows = rows_of({"fedsdg": (90, 91, 92, 93, 94)})
    rows[0] |= {"status": "failed", "error": "loss is NaN"}
    rows[1] |= {"status": "not run"}
    made = table("main", write_record(tmp_path / "small", rows))
    assert number(made, "fedsdg", "accuracy")["n"] == 3
    assert "±" not in made.text.loc["fedsdg"]["all clients"]
    assert made.notes == ("FedSDG, IID, half: 1 failed", "FedSDG, IID, half: 1 not run")


def test_differences_are_paired_by_seed(small):
    made = table("differences", small)
    gaps = np.subtract(ACCURACY["fedsdg"], ACCURACY["fedavg-uniform"])
    row = number(made, "fedsdg", "accuracy", rival="fedavg-uniform")
    expected = stats.t.interval(0.95, 4, gaps.mean(), stats.sem(gaps))
    assert (row["low"], row["high"]) == pytest.approx(expected)
    shown = made.text.loc["fedavg-uniform"]
    assert shown["all clients"] == points(row)
    assert shown["FedSDG minus"] == "FedAvg (uniform)"
    backwards = paired(small, ["accuracy"], "fedavg-uniform").query("rival == 'fedsdg'")
    assert backwards["mean"].to_numpy() == pytest.approx([-row["mean"]] * 2)


def test_cost_counts_until_the_target(small):
    made = table("cost", small)
    assert number(made, "fedsdg", "megabytes", "")["mean"] == 3
    # 95 % of 82 is 77.9: smoothed over three, FedSDG has 92 · (2 + 3 + 4) / 12 = 69 at most.
    assert "rounds_to_target" not in set(made.numbers.query("method == 'fedsdg'")["metric"])
    assert made.text.loc["fedsdg"]["seconds of a run (s)"] == "7"


def test_a_target_is_reached_at_an_evaluation(tmp_path):
    easy = {"fedsdg": (98.0,) * 5, "fedavg-uniform": (60.0,) * 5}
    made = table("cost", write_record(tmp_path / "small", rows_of(easy)))
    # The target is 57; smoothed accuracies of FedSDG: 24.5, 36.75, 49, 73.5.
    assert number(made, "fedsdg", "rounds_to_target", "")["mean"] == 40
    assert number(made, "fedsdg", "megabytes_to_target", "")["mean"] == 4


def test_settings_tell_searched_from_set(tmp_path):
    best = {"parameters": {"eta_g": 0.001}, "score": 0.9, "trial": 0}
    found = {"best": best, "expected_best": [0.8, 0.9], "failed": 1, "edges": {"eta_g": "low"}}
    search = {"methods": {"fedsdg": found}, "seeds": [100], "skews": ["iid@half"]}
    small = write_record(tmp_path / "small", search=search)
    made = table("settings", small)
    origins = made.numbers.set_index(["method", "key"])["origin"]
    assert origins["fedsdg", "training.eta_g"] == "searched"
    assert origins["fedavg-uniform", "training.eta_g"] == "set"
    assert origins["fedsdg", "training.epochs"] == "fixed"
    assert made.text.loc["fedsdg"]["searched"] == "η_g = 0.001"
    tuned = table("tuning", small)
    (row,) = tuned.numbers.to_dict("records")
    assert (row["trials"], row["failed"], row["score"], row["mean"]) == (2, 1, 90, 80)
    assert tuned.text.loc["fedsdg"]["at an edge"] == "η_g low"


def test_of_two_rows_of_a_kind_a_value_is_set_where_only_one_has_it(tmp_path):
    rows = rows_of({"fedsdg": (90.0,), "capped": (91.0,)})
    for row, cap in zip(rows, (None, 0.2), strict=True):
        own = json.loads(row["config"]) | {"parameters": {"max_weight": cap, "gamma0": 1.0}}
        row |= {"type": "fedsdg", "config": json.dumps(own)}
    made = table("settings", write_record(tmp_path / "small", rows))
    found = made.numbers[made.numbers["key"].str.startswith("parameters.")]
    origins = found.set_index(["method", "key"])["origin"].to_dict()
    assert origins == {
        ("capped", "parameters.max_weight"): "set",
        ("capped", "parameters.gamma0"): "fixed",
        ("fedsdg", "parameters.gamma0"): "fixed",
    }


def attacked(cell, accuracy, share, **conditions):
    attack = {"type": "sign-flip", "share": share}
    facts = {"skew": cell, "config": config("fedsdg", attack=attack, **conditions)}
    return [run_row("fedsdg", seed, value, **facts) for seed, value in enumerate(accuracy)]


def test_attacks_are_compared_with_the_same_runs_without(tmp_path):
    rows = attacked("iid@none", (90, 91, 92, 93, 94), 0.0)
    rows += attacked("iid@sign-flip~0.2", (80, 82, 82, 84, 84), 0.2)
    rows += attacked("iid@noisy", (10, 10, 10, 10, 10), 0.0, label_noise={"high": 0.6})
    small = write_record(tmp_path / "small", rows)
    lost = losses(small).query("at == 'selected'").to_dict("records")
    assert [(row["cell"], row["clean"]) for row in lost] == [("iid@sign-flip~0.2", "iid@none")]
    assert lost[0]["mean"] == pytest.approx(9.6)
    blocks = dict(table("attacks", small).blocks())
    assert list(blocks) == ["no attackers, IID", "sign-flip, IID"]
    assert blocks["sign-flip, IID"].loc["fedsdg"]["20 %, lost"].startswith("+9.6 [")


def test_attacks_of_one_share_that_differ_are_called_as_their_scenarios(tmp_path):
    rows = attacked("iid@none", (90, 91), 0.0)
    rows += attacked("iid@mild", (80, 82), 0.125) + attacked("iid@strong", (20, 22), 0.125)
    blocks = dict(table("attacks", write_record(tmp_path / "small", rows)).blocks())
    assert list(blocks) == ["no attackers, IID", "mild, IID", "strong, IID"]
    assert "12.5 %, lost" in blocks["mild, IID"]


def test_bold_follows_what_is_printed(tmp_path):
    rows = rows_of({"fedsdg": (80.35,), "other": (80.4,)})  # 80.35 is printed as 80.3.
    made = table("main", write_record(tmp_path / "small", rows)).text
    assert made["all clients"].to_dict() == {"fedsdg": "80.3", "other": "**80.4**"}


def test_amounts_have_three_digits():
    assert [amount(x) for x in (999.4, 999.7, 1234.5, -0.0, -2.0)] == [
        "999",
        "1,000",
        "1,234",
        "0",
        "−2",
    ]


def test_new_clients_are_those_of_the_last_quarter(tmp_path):
    rows = rows_of({"fedsdg": (90.0, 91.0)})
    rows[0] |= {"end_accuracy_new": 0.7, "selected_accuracy_new": None}
    rows[1] |= {"end_accuracy_new": 0.8, "selected_accuracy_new": 0.9}
    made = table("groups", write_record(tmp_path / "small", rows)).text
    assert made.loc["fedsdg", "new clients, last quarter"] == "**75.0**"


def test_sweeps_have_a_column_per_cell(tmp_path):
    cells = {"dirichlet~1.0": 95.0, "dirichlet~0.1": 90.0}
    rows = [
        run_row("fedsdg", seed, value, skew=cell)
        for cell, value in cells.items()
        for seed in (0, 1)
    ]
    blocks = dict(table("sweeps", write_record(tmp_path / "small", rows)).blocks())
    line = blocks["all clients"].loc["fedsdg"]
    assert (list(line.index), list(line)[1:]) == (
        ["Method", "α = 0.1", "α = 1.0"],
        ["**90.0**", "**95.0**"],
    )


def test_regret_is_measured_against_a_best_chosen_elsewhere(small):
    made = regret([small])
    row = number(made, "fedavg-uniform", "regret")
    gaps = np.subtract(ACCURACY["fedsdg"], ACCURACY["fedavg-uniform"])
    assert (row["mean"], row["tied"], row["oracle"]) == (pytest.approx(gaps.mean()), False, False)
    assert number(made, "known", "regret")["oracle"]
    assert made.text.loc["fedsdg"]["small, IID, half"].startswith("**0.0")
    assert set(regret([small], "accuracy_b").numbers["metric"]) == {"regret_accuracy_b"}


def test_a_metric_of_a_user_has_a_table(small, monkeypatch):
    monkeypatch.setattr("fedsdg.analysis.metrics.METRICS", METRICS)

    @metric("rounds, twice", table="rounds", reads="local_steps")
    def twice(rows):
        return 2 * len(rows)

    try:
        assert number(table("twice", small), "fedsdg", "twice", "")["mean"] == 8
    finally:
        del METRICS["twice"]


def test_an_unknown_table_is_named_with_the_nearest(small):
    with pytest.raises(ValueError, match="no table or metric 'mian'; did you mean 'main'"):
        table("mian", small)


def test_every_format_says_the_same(small, tmp_path):
    made = table("main", small)
    files = {file.suffix: file.read_text() for file in made.write(tmp_path)}
    read = pd.read_csv(io.StringIO(files[".csv"]))
    assert read["mean"].to_numpy() == pytest.approx(made.numbers["mean"].to_numpy(), rel=1e-5)
    assert "**92.0 ± 2.0**" in files[".md"]
    assert r"\textbf{92.0 ± 2.0}" in files[".tex"]
    assert [file.suffix for file in made.write(tmp_path / "record", tex=False)] == [".csv", ".md"]


def test_special_characters_are_escaped():
    text = pd.DataFrame({"Method": ["a_b | 5 % & c~d"]}, index=["a"])
    made = Table("odd", "A caption.", pd.DataFrame({"x": [1e-17, 1234567.0]}), text)
    assert r"a\_b \| 5 % & c\~d" in made.markdown()
    assert r"a\_b | 5 \% \& c\textasciitilde{}d" in made.latex()
    assert made.csv() == "x\n0\n1.23457e+06\n"


def test_rows_of_some_methods(small):
    lines = table("main", small).rows(["fedavg-uniform", "fedsdg"]).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["FedAvg (uniform)", "FedSDG"]
    with pytest.raises(ValueError, match="no line of 'fedsgd'; did you mean 'fedsdg'"):
        table("main", small).rows(["fedsgd"])


@pytest.mark.parametrize("name", TABLES)
def test_records_without_data_give_empty_tables(name, small):
    made = table(name, small)
    assert made.csv() and made.markdown() and made.latex()
    assert "nan" not in made.markdown()


@pytest.mark.parametrize("seeds", [0, 1])
def test_tables_of_failed_and_of_single_runs(seeds, tmp_path):
    rows = rows_of({method: values[:1] for method, values in ACCURACY.items()})
    if not seeds:
        rows = [row | {"status": "failed", "error": "loss is NaN"} for row in rows]
    small = write_record(tmp_path / "small", rows)
    for name in TABLES:
        made = table(name, small)
        assert made.csv() and made.markdown() and made.latex()
    assert len(regret([small]).numbers) == 6 * seeds


def test_every_table_that_a_record_shows_has_numbers():
    from fedsdg.analysis.render import shown

    for recorded in records(RECORDS):
        tables, _ = shown(recorded)
        assert tables, recorded.name
