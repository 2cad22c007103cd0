"""Where a method stands among others: against plain computations from the committed record."""

from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

from fedsdg.analysis.horizon import STEADY, horizon_of
from fedsdg.analysis.inference import holm
from fedsdg.analysis.names import DIFFERING, EXPECTED
from fedsdg.analysis.standing import Standing, rivals_of
from fedsdg.analysis.summary import Roles, Summary
from fedsdg.analysis.tables.render import to_text
from fedsdg.analysis.tables.standing import places, standing_table

from .conftest import first_seeds_alone

NEEDS = Path(__file__).parents[2] / "results/reference/cross-needs"
RIVALS = ("fedsdg", "fedavg", "fine-tune", "ffa-lora")


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """Ditto as if it were the newcomer, with the first five seeds of the record."""
    return first_seeds_alone(NEEDS, tmp_path_factory.mktemp("record"), "ditto", 5)


@pytest.fixture(scope="module")
def runs(record):
    frame = pd.read_parquet(record / "runs.parquet")
    return frame[frame["status"] == "ok"]


@pytest.fixture(scope="module")
def standing(record):
    return Standing(Summary(record), "ditto", RIVALS)


def test_places_are_the_ranks_of_the_means_over_the_newcomers_seeds(standing, runs):
    cell = standing.cells[0]
    seeds = set(runs[runs["method"] == "ditto"]["seed"])
    own = runs[runs["method"].isin(["ditto", *RIVALS]) & runs["seed"].isin(seeds)]
    means = own.groupby("method")["selected_expected_accuracy"].mean()
    whole = own.groupby("method")["seed"].nunique() == len(seeds)
    ranks = means[whole].rank(ascending=False)
    lines = {line.method: line for line in standing.lines(cell)}
    assert {m: line.place for m, line in lines.items() if line.place} == dict(ranks.astype(int))
    for method, line in lines.items():
        assert line.accuracies[EXPECTED].mean == pytest.approx(means[method], abs=1e-12)
    sent = own.assign(both=own["bytes_up"] + own["bytes_down"]).groupby("method")["both"].mean()
    assert lines["ditto"].megabytes == pytest.approx(sent["ditto"] / 1e6)


def test_a_rival_that_lacks_a_seed_has_no_place_and_stands_last(runs, tmp_path):
    """Whether the three seeds that there are of Ditto are the easy ones none knows."""
    few = Summary(first_seeds_alone(NEEDS, tmp_path, "ditto", 3))
    among = Standing(few, "fedsdg", ("ditto", "fedavg"))
    lines = among.lines(among.cells[0])
    places = [(line.method, line.place) for line in lines]
    assert places == [("fedsdg", 1), ("fedavg", 2), ("ditto", None)]
    own = runs[runs["method"] == "ditto"].sort_values("seed")["selected_expected_accuracy"]
    assert lines[-1].accuracies[EXPECTED].mean == pytest.approx(own[:3].mean(), abs=1e-12)


def test_rows_that_were_not_steady_are_marked(standing, runs):
    rivals = tuple(method for method in runs["method"].unique() if method != "fedavg")
    among = Standing(standing.summary, "fedavg", rivals)
    cell = among.cells[0]
    marks = {line.method: line.steady for line in among.lines(cell)}
    words = {m: horizon_of(among.summary, cell, m, EXPECTED.key) for m in marks}
    assert marks == {method: word == STEADY for method, word in words.items()}
    assert set(marks.values()) == {True, False}


def test_differences_are_paired_and_adjusted_over_all_rows_and_metrics(standing, runs):
    """Against SciPy's paired t-test; Holm's procedure goes over all of them."""
    p_values = []
    for one in standing.comparisons:
        (rival,), metric = one.named.rivals, one.named.metric
        table = runs.pivot(index="seed", columns="method", values=f"selected_{metric.key}")
        pair = table[["ditto", rival]].dropna()
        found, gap = stats.ttest_rel(pair["ditto"], pair[rival]), pair["ditto"] - pair[rival]
        judged = one.decisive.judged
        assert (judged.effect, judged.low, judged.high) == pytest.approx(
            (gap.mean(), *found.confidence_interval(0.95))
        )
        p_values.append(found.pvalue)
        verdict = one.word(5)
        if one.p_holm < 0.05:
            assert verdict.startswith("higher" if gap.mean() > 0 else "lower")
        else:
            assert verdict == "undecided" or verdict.startswith("equivalent")
    assert len(p_values) == len(RIVALS) * len(standing.metrics) == 12
    assert [one.p_holm for one in standing.comparisons] == pytest.approx(holm(p_values))


def test_a_newcomer_that_beats_everybody_is_first_and_higher(standing):
    """B is where FedAvg is far behind Ditto: a difference of tens of points cannot be missed."""
    named = (("fedavg",), DIFFERING)
    (one,) = [c for c in standing.comparisons if (c.named.rivals, c.named.metric) == named]
    assert standing.verdict(one) == "higher"
    (sentence,) = places(Standing(standing.summary, "ditto", ("fedavg", "ffa-lora")))
    assert sentence.startswith("Ditto: 1 of 3 by personal accuracy") and "IID, half" in sentence


def test_the_table_says_who_is_not_tuned_and_marks_the_newcomer(standing):
    table = standing_table(standing)
    assert not any("was not tuned" in note for note in table.notes)  # its search is in the record
    text = to_text(table)
    marked = [line for line in text.splitlines() if line.startswith("*")]
    assert len(marked) == 1 and "Ditto" in marked[0]
    untuned = Standing(standing.summary, "newcomer", RIVALS)
    assert any("was not tuned" in note for note in standing_table(untuned).notes)
    assert len(table.raw) == 12 and set(table.raw["n"]) == {5}


def test_without_seeds_enough_there_is_no_column_of_verdicts(tmp_path):
    few = Standing(Summary(first_seeds_alone(NEEDS, tmp_path, "ditto", 2)), "ditto", RIVALS)
    table = standing_table(few)
    heads = [head for _, head in table.blocks[1].columns]
    assert "verdict" not in heads and len(heads) == 1 + len(few.metrics)
    assert any("no verdicts" in note for note in table.notes)
    assert not any("Holm" in note for note in table.notes)


def test_seconds_of_another_machine_are_left_out(standing):
    cell = standing.cells[0]
    apart = Standing(standing.summary, "ditto", RIVALS, elsewhere=True)
    for one, other in zip(standing.lines(cell), apart.lines(cell), strict=True):
        assert other.seconds == (one.seconds if one.method == "ditto" else None)
    assert any("another machine" in note for note in standing_table(apart).notes)


def test_a_ceiling_is_no_rival():
    methods = ["fedsdg", "centralised", "centralised-long"]
    assert rivals_of(methods, Roles("fedsdg", (), "centralised")) == ("fedsdg",)
    assert rivals_of(methods, Roles("fedsdg", (), None)) == tuple(methods)
