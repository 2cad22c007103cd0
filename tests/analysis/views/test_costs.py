"""Accuracy against its costs, against sums and loops written out by hand."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsdg.analysis.summary import Summary
from fedsdg.analysis.views import costs
from fedsdg.files.records import write_tables

from ..conftest import Run, drawn, make_record, markdown


def run(method, seed, accuracies, step=10):
    """Every second round is evaluated; a round has ``step`` local steps and 3 MB."""
    rounds = [
        {"round": i + 1, "evaluated": i % 2 == 1, "local_steps": step}
        | {"bytes_up": 1_000_000, "bytes_down": 2_000_000}
        | {"personal_accuracy": accuracies[i // 2] if i % 2 else None}
        for i in range(2 * len(accuracies))
    ]
    last, timings = {"personal_accuracy": accuracies[-1]}, [{"round": 1}, {"round": 2}]
    return Run(method, seed, rounds=rounds, last=last, timings=timings)


def rewrite(file, frame):
    schema = pq.read_schema(file).remove_metadata()
    write_tables(file, [pa.Table.from_pandas(frame, schema, preserve_index=False)], schema)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    runs = [
        run("fedavg-uniform", 0, [0.2, 0.5, 0.8, 0.8]),
        run("fedavg-uniform", 1, [0.4, 0.7, 0.8, 0.8]),
        run("krum", 0, [0.1, 0.1, 0.1, 0.1]),
        run("ditto", 0, [0.9, 0.9, 0.9, 0.9], step=25),
    ]
    return make_record(tmp_path_factory.mktemp("costs"), "arena", runs)


def test_costs_add_up_to_each_evaluation(folder) -> None:
    rows = costs.progress(Summary(folder))
    own = rows[rows["method"] == "fedavg-uniform"].sort_values("round")
    assert own["round"].tolist() == [2, 4, 6, 8]
    assert own["steps"].tolist() == [20, 40, 60, 80]
    assert own["bytes"].tolist() == [6e6, 12e6, 18e6, 24e6]
    assert own["mean"].tolist() == pytest.approx([0.3, 0.6, 0.8, 0.8])
    # Two seeds, 0.2 and 0.4: t(0.975, 1) · s / √2 = 12.706 · 0.1.
    assert own["high"].iloc[0] - own["mean"].iloc[0] == pytest.approx(1.2706, abs=1e-3)
    assert set(rows["metric"]) == {"personal_accuracy"}


def test_smoothing_is_the_mean_of_up_to_three_evaluations() -> None:
    assert costs.smoothed([3.0, 0.0, 0.0, 6.0, 3.0]) == pytest.approx([3.0, 1.5, 1.0, 2.0, 3.0])


def test_a_target_is_reached_by_the_smoothed_mean_or_never(folder) -> None:
    rows = costs.rounds_to_target(Summary(folder)).set_index(["method", "share"])
    assert set(rows.index.get_level_values("share")) == set(costs.SHARES)
    # The yardstick ends at 0.8, so 90 % are 0.72; its smoothed curve is 0.3, 0.45, 0.567, 0.733.
    own = rows.loc[("fedavg-uniform", 0.90)]
    assert own["target"] == pytest.approx(0.72)
    assert (own["round"], own["steps"], own["bytes"]) == (8, 80, 24e6)
    assert np.isnan(rows.loc[("fedavg-uniform", 0.99), "round"])
    assert rows.loc[("ditto", 0.99)][["round", "steps"]].tolist() == [2, 50]
    assert rows.loc["krum"]["round"].isna().all()
    text = markdown(folder, "rounds_to_target")
    assert "to 72.0 %" in text
    line = next(line for line in text.splitlines() if line.startswith("| Krum"))
    assert line.count("–") == 3 * len(costs.SHARES)


def test_a_target_is_reached_where_it_is_met_exactly_and_needs_its_yardstick(summary_of) -> None:
    """0.9 · 0.5 = 0.45, also in floating point."""
    folder = summary_of([run("krum", 0, [0.9 * 0.5, 0.0])])
    assert "FedAvg (uniform) to measure by" in markdown(folder, "rounds_to_target")
    folder = summary_of([run("fedavg-uniform", 0, [0.5, 0.5])])
    rows = costs.rounds_to_target(Summary(folder)).set_index(["method", "share"])
    assert rows.loc[("krum", 0.90), "round"] == 2


def test_seconds_are_means_over_the_runs_that_are_ok(summary_of) -> None:
    """Rounds of 1 and 3 seconds; a third run, which failed, took 100."""
    runs = [run("krum", seed, [0.1, 0.2]) for seed in range(3)]
    folder = summary_of(runs)
    timings = pd.read_parquet(folder / "timings.parquet")
    timings["train_seconds"] = timings["seed"].map({0: 1.0, 1: 3.0, 2: 100.0})
    timings["wall_seconds"] = timings["seed"].map({0: 10.0, 1: 14.0, 2: 900.0})
    rewrite(folder / "timings.parquet", timings)
    listed = pd.read_parquet(folder / "runs.parquet")
    listed.loc[listed["seed"] == 2, "status"] = "failed"
    rewrite(folder / "runs.parquet", listed)
    (row,) = costs.seconds(Summary(folder)).to_dict("records")
    assert row["train per round (s)"] == 2.0
    assert row["wall time per run (s)"] == 12.0
    # Of two values, s = |difference| / √2.
    assert row["standard deviation of wall time (s)"] == pytest.approx(4 / 2**0.5)


def test_traffic_is_a_mean_over_runs_and_rounds_in_either_direction(summary_of) -> None:
    folder = summary_of([run("krum", seed, [0.1, 0.2]) for seed in range(2)])
    listed = pd.read_parquet(folder / "runs.parquet")
    listed = listed.assign(bytes_up=[4000000, 8000000], bytes_down=[400000, 1200000], rounds=[4, 4])
    rewrite(folder / "runs.parquet", listed)
    (row,) = costs.traffic(Summary(folder)).to_dict("records")
    assert (row["bytes up per run (bytes)"], row["bytes down per run (bytes)"]) == (6e6, 8e5)
    assert (row["bytes up per round (bytes)"], row["bytes down per round (bytes)"]) == (1.5e6, 2e5)
    (line,) = [x for x in markdown(folder, "bytes").splitlines() if x.startswith("| Krum")]
    # 1 kB = 1000 bytes, 1 MB = 1000 kB.
    printed = [float(cell.replace(",", "")) for cell in line.split("|")[2:6]]
    assert printed == [1500, 200, 6, 0.8]


def test_fine_tuning_before_an_evaluation_is_counted_where_recorded(folder, summary_of) -> None:
    """Fine-tuning trains 7 more steps in the rounds that are evaluated: the second and fourth."""
    plain, tuned = run("fedavg-uniform", 0, [0.2, 0.8]), run("fine-tune", 0, [0.2, 0.8])
    for each, steps in ((plain, 0), (tuned, 7)):
        for row in each.rounds:
            row["personal_steps"] = steps if row["evaluated"] else 0
    counted = summary_of([plain, tuned])
    rows = costs.progress(Summary(counted))
    tuned_rows = rows[rows["method"] == "fine-tune"]
    assert tuned_rows["steps"].tolist() == [20, 40], "local steps alone, as for any method"
    assert tuned_rows["personal_steps"].tolist() == [7, 14]
    assert "personal steps (k)" in markdown(counted, "rounds_to_target")
    assert "personal_steps" not in costs.progress(Summary(folder))
    text = markdown(folder, "rounds_to_target")
    assert "personal steps (k)" not in text
    assert "Steps of fine-tuning before an evaluation are not counted" in text


def timed(seed, scenario, seconds, **counts):
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


COUNTS = {"arrived": [5, 4, 3, 2], "late": [0, 2, 2, 0], "discarded": [0, 0, 1, 2]}


@pytest.fixture
def clocked(summary_of):
    plain = Run("krum", 0, "deadline", rounds=[{"round": 1, "evaluated": True}])
    return summary_of(
        [
            timed(0, "deadline", [1.0, 2.0, 4.0, 7.0], **COUNTS),
            timed(1, "deadline", [2.0, 3.0, 4.5, 6.0], **COUNTS),
            timed(0, "wait", [10.0, 20.0]),
            plain,
        ]
    )


def test_the_mean_curve_steps_with_every_seed(clocked) -> None:
    rows = costs.accuracy_over_time(Summary(clocked))
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


def test_costs_are_sums_over_rounds_and_means_over_seeds(clocked, summary_of) -> None:
    rows = costs.costs_of_waiting(Summary(clocked)).set_index("scenario")
    row = rows.loc["deadline"]
    assert row["n"] == 2
    assert row["simulated_seconds"] == pytest.approx((7.0 + 6.0) / 2)
    assert row["idle_seconds"] == 2.0 * (1 + 2 + 3 + 4)
    assert (row["arrived"], row["late"], row["discarded"]) == (14, 4, 3)
    assert row["discarded_share"] == pytest.approx(3 / 17)
    assert row["global_accuracy"] == pytest.approx(0.405)
    assert np.isnan(rows.loc["wait", "arrived"])
    text = markdown(clocked, "stragglers")
    assert "| deadline |" in text and "17.6" in text and "40.5" in text
    assert "out of time" not in text
    # A round without such clients says nothing, and so does a seed; both count 0.
    short = [timed(0, "short", [1.0, 2.0], **{**COUNTS, "out_of_time": [None, 3]})]
    some = summary_of([*short, timed(1, "short", [1.0, 2.0], **COUNTS)])
    rows = costs.costs_of_waiting(Summary(some)).set_index("scenario")
    assert rows.loc["short", "out_of_time"] == 1.5
    assert "| out of time |" in markdown(some, "stragglers")


def test_personal_accuracy_is_the_expected_one_where_the_record_has_it(summary_of) -> None:
    """The accuracy on the own shard has the same title, and may be far from it."""
    expected = timed(0, "deadline", [1.0, 2.0])
    for row in expected.rounds:
        row["expected_accuracy"] = 0.9 if row["evaluated"] else None
    expected.last["expected_accuracy"] = 0.9
    folder = summary_of([expected])
    rows = costs.accuracy_over_time(Summary(folder)).set_index("metric")
    assert set(rows.index) == {"expected_accuracy", "global_accuracy"}
    assert rows.loc["expected_accuracy", "mean"] == 0.9
    personal = drawn(folder, "stragglers").axes[0].lines[0].get_ydata()
    assert personal.tolist() == [90.0]
