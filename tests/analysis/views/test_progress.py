"""Accuracy against rounds, steps and bytes, against sums written out by hand."""

import numpy as np
import pytest

from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables import write_table
from fedsdg.analysis.views.progress import SHARES, progress, rounds_to_target, smoothed

from ..conftest import Run


def run(method, seed, accuracies, step=10, column="personal_accuracy"):
    """Every second round is evaluated; a round has ``step`` local steps and 3 MB."""
    rounds = [
        {
            "round": i + 1,
            "evaluated": i % 2 == 1,
            "local_steps": step,
            "bytes_up": 1_000_000,
            "bytes_down": 2_000_000,
            "personal_accuracy": 0.0,
        }
        | ({column: accuracies[i // 2]} if i % 2 else {"personal_accuracy": None})
        for i in range(2 * len(accuracies))
    ]
    return Run(method, seed, rounds=rounds, last={column: accuracies[-1]})


@pytest.fixture
def summary(summary_of):
    return summary_of(
        [
            run("fedavg-uniform", 0, [0.2, 0.5, 0.8, 0.8]),
            run("fedavg-uniform", 1, [0.4, 0.7, 0.8, 0.8]),
            run("krum", 0, [0.1, 0.1, 0.1, 0.1]),
            run("ditto", 0, [0.9, 0.9, 0.9, 0.9], step=25),
        ]
    )


def test_costs_add_up_to_each_evaluation(summary) -> None:
    rows = progress(Summary(summary))
    own = rows[rows["method"] == "fedavg-uniform"].sort_values("round")
    assert own["round"].tolist() == [2, 4, 6, 8]
    assert own["steps"].tolist() == [20, 40, 60, 80]
    assert own["bytes"].tolist() == [6e6, 12e6, 18e6, 24e6]
    assert own["mean"].tolist() == pytest.approx([0.3, 0.6, 0.8, 0.8])
    # Two seeds, 0.2 and 0.4: t(0.975, 1) · s / √2 = 12.706 · 0.1.
    assert own["high"].iloc[0] - own["mean"].iloc[0] == pytest.approx(1.2706, abs=1e-3)
    assert set(rows["metric"]) == {"personal_accuracy"}


def test_smoothing_is_the_mean_of_up_to_three_evaluations() -> None:
    assert smoothed([3.0, 0.0, 0.0, 6.0, 3.0]) == pytest.approx([3.0, 1.5, 1.0, 2.0, 3.0])


def test_a_target_is_reached_by_the_smoothed_mean_or_never(summary, tmp_path) -> None:
    rows = rounds_to_target(Summary(summary)).set_index(["method", "share"])
    assert set(rows.index.get_level_values("share")) == set(SHARES)
    # The yardstick ends at 0.8, so 90 % are 0.72; its smoothed curve is 0.3, 0.45, 0.567, 0.733.
    own = rows.loc[("fedavg-uniform", 0.90)]
    assert own["target"] == pytest.approx(0.72)
    assert (own["round"], own["steps"], own["bytes"]) == (8, 80, 24e6)
    assert np.isnan(rows.loc[("fedavg-uniform", 0.99), "round"])
    assert rows.loc[("ditto", 0.99)][["round", "steps"]].tolist() == [2, 50]
    assert rows.loc["krum"]["round"].isna().all()
    _, markdown, _ = write_table(summary, "rounds_to_target", tmp_path / "t")
    text = markdown.read_text("utf-8")
    assert "to 72.0 %" in text
    line = next(line for line in text.splitlines() if line.startswith("| Krum"))
    assert line.count("–") == 3 * len(SHARES)


def test_expected_accuracy_stands_first_where_it_was_recorded(summary_of) -> None:
    rows = progress(Summary(summary_of([run("ditto", 0, [0.3, 0.4], column="expected_accuracy")])))
    assert rows["metric"].tolist() == ["expected_accuracy"] * 2
    assert rows["mean"].tolist() == [0.3, 0.4]


def test_without_the_yardstick_the_table_says_so(summary_of, tmp_path) -> None:
    folder = summary_of([run("krum", 0, [0.1, 0.2])])
    _, markdown, _ = write_table(folder, "rounds_to_target", tmp_path / "t")
    assert "FedAvg (uniform) to measure by" in markdown.read_text("utf-8")


def test_fine_tuning_before_an_evaluation_is_counted_where_recorded(summary_of, tmp_path) -> None:
    """Fine-tuning trains 7 more steps in the rounds that are evaluated: the second and fourth."""
    plain, tuned = run("fedavg-uniform", 0, [0.2, 0.8]), run("fine-tune", 0, [0.2, 0.8])
    for each, steps in ((plain, 0), (tuned, 7)):
        for row in each.rounds:
            row["personal_steps"] = steps if row["evaluated"] else 0
    folder = summary_of([plain, tuned])
    rows = progress(Summary(folder))
    tuned_rows = rows[rows["method"] == "fine-tune"]
    assert tuned_rows["steps"].tolist() == [20, 40], "local steps alone, as for any method"
    assert tuned_rows["personal_steps"].tolist() == [7, 14]
    _, markdown, _ = write_table(folder, "rounds_to_target", tmp_path / "with")
    assert "personal steps (k)" in markdown.read_text("utf-8")


def test_a_record_without_steps_of_fine_tuning_says_that_they_are_not_counted(summary, tmp_path):
    assert "personal_steps" not in progress(Summary(summary))
    _, markdown, _ = write_table(summary, "rounds_to_target", tmp_path / "without")
    text = markdown.read_text("utf-8")
    assert "personal steps (k)" not in text
    assert "Steps of fine-tuning before an evaluation are not counted" in text
