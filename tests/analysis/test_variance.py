"""Components of the variance of a crossed design, and how a longer run shows in the main table."""

import json

import numpy as np
import pytest

from fedsdg.analysis.figures import figure_named, sidecars, write_figure
from fedsdg.analysis.tables import table
from fedsdg.analysis.variance import components, design, draws_needed
from tests.analysis.small import config, rows_of, run_row, write_record

METHODS = ("fedsdg", "fedavg-uniform", "known")


def test_without_noise_components_are_sample_variances():
    rng = np.random.default_rng(0)
    method, partition, seed = (rng.normal(size=n) for n in (3, 5, 4))
    found = components(method[:, None, None] + partition[:, None] + seed)
    assert found["partition"] == pytest.approx(partition.var(ddof=1))
    assert found["training seed"] == pytest.approx(seed.var(ddof=1))
    assert found["method × partition"] == pytest.approx(0, abs=1e-12)
    assert found["residual"] == pytest.approx(0, abs=1e-12)


def test_components_are_those_that_the_numbers_were_drawn_with():
    rng = np.random.default_rng(0)
    shapes = {"partition": (1, 10, 1), "method × partition": (6, 10, 1), "training seed": (1, 1, 3)}
    drawn = {"partition": 4.0, "method × partition": 2.0, "training seed": 0.5, "residual": 1.0}
    found = []
    for _ in range(600):
        y = rng.normal(size=(6, 10, 3))
        for source, shape in shapes.items():
            y = y + rng.normal(scale=drawn[source] ** 0.5, size=shape)
        found.append([*components(y).values()])
    assert np.mean(found, axis=0) == pytest.approx([*drawn.values()], rel=0.1)


def test_draws_shrink_the_interval_of_a_difference_to_a_point():
    # The variance of a difference is 2 (2 + 1): 26 draws give 2.06 √(6 / 26) = 0.99 points.
    assert draws_needed({"method × partition": 2.0, "residual": 1.0}) == 26
    assert draws_needed({"method × partition": 0.0, "residual": 0.0}) == 2


def crossed(accuracy):
    """Return runs of three methods on two partitions, each under three seeds."""
    rows = []
    for m, method in enumerate(METHODS):
        for partition in (3, 4):
            for seed in (3, 4, 5):
                row = run_row(method, seed, accuracy(m, partition, seed), skew=f"iid@{partition}")
                drawn = {} if partition == seed else {"partition_seed": partition}
                rows.append(row | {"config": json.dumps(json.loads(config(method)) | drawn)})
    return rows


def test_the_table_and_the_figure_are_of_partitions(tmp_path):
    rows = crossed(lambda m, partition, seed: 80 + m + 4 * partition)
    record = write_record(tmp_path / "small", rows)
    made = table("variance", record)
    shares = made.numbers[made.numbers["at"] == "end"].set_index("source")["share"]
    assert shares.round(6).to_dict() == {
        **{"partition": 100, "method × partition": 0, "training seed": 0, "residual": 0}
    }
    assert len(made.notes) == 2
    frame = figure_named("variance").frame(record)
    assert {file.suffix for file in write_figure("variance", record, tmp_path / "drawn")} == {
        *(".pdf", ".svg", ".png", ".csv", ".json")
    }
    assert frame[frame["method"] == "fedsdg"]["mean"].tolist() == pytest.approx([92, 96])


def test_results_that_are_all_equal_have_a_table(tmp_path):
    made = table("variance", write_record(tmp_path / "small", crossed(lambda *_: 80)))
    assert made.numbers["share"].tolist() == [0.0] * 8


def test_runs_that_are_not_crossed_have_no_components(tmp_path):
    rows = crossed(lambda m, partition, seed: 80 + m)[1:]
    record = write_record(tmp_path / "small", rows)
    assert design(record).empty
    assert table("variance", record).numbers.empty
    assert sidecars("variance", record) == {}


def test_the_main_table_shows_what_twice_the_rounds_change(tmp_path):
    short = write_record(tmp_path / "small")
    head = "change when the rounds double (points)"
    # Accuracies of the small record rise in proportion to the round: half of them by round 20.
    assert table("main", short).text.loc["fedsdg", head].startswith("+46.0 [")
    write_record(tmp_path / "length-small", rows_of({"fedsdg": (80.0, 90.0)}))
    made = table("main", short)
    (row,) = made.numbers[made.numbers["metric"] == "doubled"].to_dict("records")
    assert (row["experiment"], row["method"], row["n"]) == ("small", "fedsdg", 2)
    assert made.text.loc["fedsdg", head] == "+42.5 (n = 2)"
    assert made.text.loc["known", head] == "–"
