"""Accuracy on the simulated clock and the cost of waiting, against loops over the rows."""

import numpy as np
import pytest

from fedsdg.analysis.plots import FIGURES
from fedsdg.analysis.plots.style import styled
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables import write_table
from fedsdg.analysis.views.time import accuracy_over_time, costs_of_waiting

from ..conftest import Run


def run(seed, scenario, seconds, **counts):
    """Rounds that end at these seconds; the second and every later one is evaluated."""
    rounds = [
        {
            "round": i + 1,
            "evaluated": i > 0,
            "simulated_seconds": at,
            "global_accuracy": 0.1 * (i + 1) + 0.01 * seed if i > 0 else None,
            "personal_accuracy": 0.5 if i > 0 else None,
            "idle_seconds": 2.0 * (i + 1),
        }
        | {name: values[i] for name, values in counts.items()}
        for i, at in enumerate(seconds)
    ]
    last = {"global_accuracy": rounds[-1]["global_accuracy"], "personal_accuracy": 0.5}
    return Run("fedavg", seed, scenario, rounds=rounds, last=last)


COUNTS = {"arrived": [5, 4, 3, 2], "late": [0, 1, 2, 0], "discarded": [0, 0, 1, 2]}


@pytest.fixture
def summary(summary_of):
    plain = Run("krum", 0, "deadline", rounds=[{"round": 1, "evaluated": True}])
    return summary_of(
        [
            run(0, "deadline", [1.0, 2.0, 4.0, 7.0], **COUNTS),
            run(1, "deadline", [2.0, 3.0, 4.5, 6.0], **COUNTS),
            run(0, "wait", [10.0, 20.0]),
            plain,
        ]
    )


def test_the_mean_curve_steps_with_every_seed(summary) -> None:
    rows = accuracy_over_time(Summary(summary))
    own = rows[(rows["scenario"] == "deadline") & (rows["metric"] == "global_accuracy")]
    # Seed 0 is evaluated at 2, 4, 7 and seed 1 at 3, 4.5, 6: both from 3 on. Seed 1 is over at 6
    # and keeps its last accuracy to the end of the longer run.
    assert own["seconds"].tolist() == [3.0, 4.0, 4.5, 6.0, 7.0]
    first, second = [0.2, 0.3, 0.3, 0.3, 0.4], [0.21, 0.21, 0.31, 0.41, 0.41]
    assert own["mean"].to_numpy() == pytest.approx(np.mean([first, second], axis=0))
    assert set(own["n"]) == {2}
    alone = rows[(rows["scenario"] == "wait") & (rows["metric"] == "global_accuracy")]
    assert (alone["seconds"].tolist(), alone["mean"].tolist()) == ([20.0], [0.2])
    assert "krum" not in set(rows["method"]), "a run without a clock is not drawn"


def test_costs_are_sums_over_rounds_and_means_over_seeds(summary, tmp_path) -> None:
    rows = costs_of_waiting(Summary(summary)).set_index("scenario")
    row = rows.loc["deadline"]
    assert row["n"] == 2
    assert row["simulated_seconds"] == pytest.approx((7.0 + 6.0) / 2)
    assert row["idle_seconds"] == 2.0 * (1 + 2 + 3 + 4)
    assert (row["arrived"], row["late"], row["discarded"]) == (14, 3, 3)
    assert row["discarded_share"] == pytest.approx(3 / 17)
    assert row["global_accuracy"] == pytest.approx(0.405)
    assert np.isnan(rows.loc["wait", "arrived"])
    _, markdown, _ = write_table(summary, "stragglers", tmp_path / "stragglers")
    text = markdown.read_text("utf-8")
    assert "| deadline |" in text and "17.6" in text and "40.5" in text


def test_clients_out_of_time_are_counted_where_there_are_any(summary, summary_of, tmp_path):
    _, plain, _ = write_table(summary, "stragglers", tmp_path / "plain")
    assert "out of time" not in plain.read_text("utf-8")
    # A round without such clients says nothing, and so does a seed; both count 0.
    some = summary_of(
        [
            run(0, "short", [1.0, 2.0], **{**COUNTS, "out_of_time": [None, 3]}),
            run(1, "short", [1.0, 2.0], **COUNTS),
        ]
    )
    rows = costs_of_waiting(Summary(some)).set_index("scenario")
    assert rows.loc["short", "out_of_time"] == 1.5
    _, markdown, _ = write_table(some, "stragglers", tmp_path / "some")
    assert "| out of time |" in markdown.read_text("utf-8")


def test_without_a_clock_the_table_says_so(summary_dir, tmp_path) -> None:
    _, markdown, _ = write_table(summary_dir, "stragglers", tmp_path / "stragglers")
    assert "kept simulated time" in markdown.read_text("utf-8")


def test_personal_accuracy_is_the_expected_one_where_the_record_has_it(summary_of) -> None:
    """The accuracy on the own shard has the same title, and may be far from it."""
    expected = run(0, "deadline", [1.0, 2.0])
    for row in expected.rounds:
        row["expected_accuracy"] = 0.9 if row["evaluated"] else None
    expected.last["expected_accuracy"] = 0.9
    summary = Summary(summary_of([expected]))
    rows = accuracy_over_time(summary).set_index("metric")
    assert set(rows.index) == {"expected_accuracy", "global_accuracy"}
    assert rows.loc["expected_accuracy", "mean"] == 0.9
    with styled():
        figure = FIGURES["stragglers"](summary)
    personal = figure.axes[1].lines[0].get_ydata()
    assert personal.tolist() == [90.0]
