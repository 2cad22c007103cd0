"""Primary comparisons: SciPy's paired tests, Holm over all that were named, and verdicts."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy import stats

from fedsdg.analysis.comparisons import Named, adjusted, compare, comparisons, facts
from fedsdg.analysis.inference import holm
from fedsdg.analysis.names import metric_named
from fedsdg.analysis.summary import Cell, Setting, Summary
from fedsdg.analysis.tables import TABLES

from .conftest import Run, make_record, markdown

SEEDS = range(10)


def named(name, rivals, metric="expected_accuracy_b", subject="fedsdg"):
    place = {"dataset": "digits", "clients": 10, "skew": "iid"}
    return {"id": name, "subject": subject, "rivals": rivals, "metric": metric} | place


def runs(values):
    """``values``: method → metric → a value for each seed."""
    for method, metrics in values.items():
        for seed in range(len(next(iter(metrics.values())))):
            quarter = {metric: float(own[seed]) for metric, own in metrics.items()}
            quarter |= {"expected_accuracy": 0.5, "evaluations": 3}
            at = {"selected": quarter, "quarter": quarter}
            yield Run(method, seed, skew="iid", last={"personal_accuracy": 0.1}, **at)


def spread(mean, scale, n=10, key=0):
    """``n`` numbers of exactly this mean and standard deviation."""
    if n == 1:
        return np.array([mean])
    x = np.random.default_rng([n, key]).normal(size=n)
    return mean + scale * (x - x.mean()) / x.std(ddof=1)


def of(differences, base=0.6):
    """Accuracies of the subject and of rivals, so that the differences are these."""
    first = next(iter(differences.values()))
    ours = spread(base, 0.05, len(first), key=9)
    values = {"fedsdg": {"expected_accuracy_b": ours}}
    for rival, difference in differences.items():
        values[rival] = {"expected_accuracy_b": ours[: len(difference)] - difference}
    return values


@pytest.fixture
def compared(summary_of):
    def make(differences, *wanted):
        wanted = wanted or (named("one", list(differences)),)
        summary = Summary(summary_of(runs(of(differences)), wanted))
        return {one.named.id: one for one in comparisons(summary)}

    return make


def test_p_values_are_scipys_and_holms(compared) -> None:
    differences = {
        "fedavg": spread(0.02, 0.02, key=1),
        "ditto": spread(-0.004, 0.01, key=2),
        "fedrep": spread(0.0, 0.006, key=3),
    }
    found = compared(differences, *(named(rival, [rival]) for rival in differences))
    values = of(differences)
    p, p_equivalent = [], []
    for rival, one in found.items():
        ours, theirs = (values[m]["expected_accuracy_b"] for m in ("fedsdg", rival))
        test = stats.ttest_rel(ours, theirs)
        ends = test.confidence_interval()
        judged = one.decisive.judged
        assert (judged.low, judged.high) == (pytest.approx(ends.low), pytest.approx(ends.high))
        p.append(test.pvalue)
        above = stats.ttest_rel(ours + 0.01, theirs, alternative="greater").pvalue
        below = stats.ttest_rel(ours - 0.01, theirs, alternative="less").pvalue
        p_equivalent.append(max(above, below))
        assert judged.visible == pytest.approx(
            (stats.t.ppf(0.975, 9) + stats.t.ppf(0.8, 9)) * stats.sem(ours - theirs)
        )
    assert [one.p for one in found.values()] == pytest.approx(p)
    assert [one.p_holm for one in found.values()] == pytest.approx(holm(p))
    assert [one.p_equivalent for one in found.values()] == pytest.approx(p_equivalent)
    assert [one.p_equivalent_holm for one in found.values()] == pytest.approx(holm(p_equivalent))


@pytest.mark.parametrize(
    ("mean", "scale", "verdict"),
    [
        (0.05, 0.01, "higher"),
        (-0.05, 0.01, "lower"),
        (0.0, 0.005, "equivalent within ±1 point"),
        (0.004, 0.002, "higher, within the margin"),
        (-0.004, 0.002, "lower, within the margin"),
        (0.005, 0.03, "undecided"),
    ],
)
def test_verdicts_follow_both_tests(compared, mean, scale, verdict) -> None:
    one = compared({"ditto": spread(mean, scale)})["one"]
    assert (one.n, one.verdict) == (10, verdict)
    assert one.p_holm == one.p and one.p_equivalent_holm == one.p_equivalent


def test_a_verdict_needs_ten_common_seeds(compared) -> None:
    one = compared({"ditto": spread(0.05, 0.01, 9)})["one"]
    assert one.verdict == "9 seeds, no verdict" and one.p < 1e-4
    one = compared({"krum": spread(0.05, 0.01, 1)}, named("one", ["krum"]))["one"]
    assert one.verdict == "1 seed, no verdict" and one.p is None
    more = {"fedavg": spread(0.05, 0.01, 12, key=1), "fedavg-sgd": spread(0.05, 0.01, 10)}
    one = compared(more)["one"]
    assert [d.n for d in one.differences] == [12, 10] and one.n == 10, "what all have"


def test_what_is_yet_to_be_run_counts_in_holms_correction(compared) -> None:
    both = (named("one", ["ditto"]), named("two", ["fedrep"]))
    found = compared({"ditto": spread(0.03, 0.02)}, *both)
    assert found["one"].p_holm == pytest.approx(min(1.0, 2 * found["one"].p))
    two = found["two"]
    assert (two.p, two.p_holm, two.n) == (None, None, 0)
    assert two.verdict == "0 seeds, no verdict"


def test_ahead_of_each_takes_the_largest_p_and_the_smallest_difference(compared) -> None:
    differences = {
        "fedavg": spread(0.06, 0.01, key=1),
        "fedavg-uniform": spread(0.03, 0.03, key=2),
        "fedavg-sgd": spread(0.02, 0.005, key=3),
    }
    one = compared(differences)["one"]
    p = [stats.ttest_1samp(d, 0).pvalue for d in differences.values()]
    assert max(p) == p[1]
    assert one.p == pytest.approx(p[1])
    assert one.decisive.rival == "fedavg-sgd" and one.verdict == "higher"
    assert [d.rival for d in one.differences] == list(differences)


def test_ahead_of_each_fails_with_one_that_is_ahead(compared) -> None:
    differences = {"fedavg": spread(0.06, 0.01, key=1), "fedavg-sgd": spread(-0.03, 0.01, key=2)}
    one = compared(differences)["one"]
    assert one.p == pytest.approx(2 * stats.ttest_1samp(differences["fedavg-sgd"], 0).pvalue)
    assert (one.decisive.rival, one.verdict) == ("fedavg-sgd", "lower")
    undecided = compared(differences | {"fedavg-sgd": spread(-0.002, 0.03, key=2)})["one"]
    assert undecided.verdict == "undecided"


def test_the_table_and_the_file_hold_what_was_named(summary_of) -> None:
    differences = {"fedavg": spread(0.06, 0.01), "fedavg-sgd": spread(0.04, 0.01, key=2)}
    folder = summary_of(runs(of(differences)), [named("ahead", list(differences))])
    text = markdown(folder, "primary")
    assert "| ahead: FedSDG | accuracy of clients that differ (B) |" in text
    assert "each of 2" in text and text.count("| higher |") == 1 and "+4.0 [" in text
    assert "ahead: before convergence or not judged" not in text, "runs without rounds say nothing"
    assert len(TABLES["primary"](Summary(folder)).raw) == 2
    (folder / "primary.json").unlink()
    assert comparisons(Summary(folder)) == [], "a record from before lacks the file"


def test_few_seeds_have_points_alone(summary_of) -> None:
    folder = summary_of(runs(of({"ditto": spread(0.05, 0.001, 4)})), [named("one", ["ditto"])])
    row = next(line for line in markdown(folder, "primary").splitlines() if "one: FedSDG" in line)
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[4:] == ["4", "+5.0", "–", "–", "–", "4 seeds, no verdict"]


def test_a_claim_not_to_be_below_is_tested_against_its_margin(compared) -> None:
    """Two points behind are not below by three, and clearly below by one.

    A point behind one of two: above −3 is above it for each, so no correction is needed.
    """
    behind, wide = spread(-0.02, 0.01), spread(-0.02, 0.05)
    for given, margin, verdict in (
        (behind, 3.0, "not below by 3 points"),
        (behind, 1.0, "below by 1 point"),
        (wide, 1.0, "undecided"),
    ):
        claim = named("one", ["ditto"]) | {"kind": "not-below", "margin": margin}
        one = compared({"ditto": given}, claim)["one"]
        assert one.verdict == verdict
        assert one.p == pytest.approx(stats.ttest_1samp(given, -margin / 100).pvalue)
    differences = {"ditto": spread(-0.01, 0.02, key=1), "fedrep": spread(0.03, 0.09, key=2)}
    claim = named("one", list(differences)) | {"kind": "not-below", "margin": 3.0}
    one = compared(differences, claim)["one"]
    p = [stats.ttest_1samp(d, -0.03).pvalue for d in differences.values()]
    assert one.decisive.rival == "ditto" and p[1] > 2 * p[0]
    assert one.p == pytest.approx(p[1])


def test_seeds_that_were_named_alone_count(compared) -> None:
    differences = np.concatenate([spread(0.05, 0.01, 10), [-0.9, -0.9]])
    claim = named("one", ["ditto"]) | {"kind": "above", "seeds": [*range(10)]}
    one = compared({"ditto": differences}, claim)["one"]
    assert (one.n, one.verdict) == (10, "higher")


def test_a_regret_is_the_sum_over_its_cells_in_several_records(tmp_path) -> None:
    """The best row cancels: what is left is the difference of sums, seed by seed."""
    first, second = spread(0.04, 0.01, key=1), spread(-0.01, 0.01, key=2)
    claim = {"id": "regret", "subject": "fedsdg", "rivals": ["krum"], "kind": "regret"}
    claim |= {"metric": "expected_accuracy", "cells": ["one:iid", "two:iid"]}
    for name, gaps in (("one", first), ("two", second)):
        made = []
        for seed, gap in enumerate(gaps):
            for method, value in (("fedsdg", 0.8), ("krum", 0.8 - gap)):
                last = {"expected_accuracy": float(value)}
                quarter = last | {"evaluations": 3}
                made.append(Run(method, seed, skew="iid", last=last, quarter=quarter))
        folder = make_record(tmp_path, name, made, primary=[claim])
        (one,) = comparisons(Summary(folder))
        if name == "one":
            assert one.verdict == "0 seeds, no verdict", "the other record is not there yet"
    sums = first + second
    assert one.decisive.judged.effect == pytest.approx(sums.mean())
    assert one.p == pytest.approx(stats.ttest_1samp(sums, 0).pvalue)
    assert one.verdict == "lower regret"
    assert facts(one)["cells"] == "one:iid, two:iid"
    assert "| one:iid, two:iid |" in markdown(folder, "primary")


def by_round(summary_of, selected, quarter, before):
    """One comparison with ditto whose differences are these in each of the reported rounds."""
    ours = spread(0.6, 0.05, key=9)
    both = []
    for seed, method in product(SEEDS, ("fedsdg", "ditto")):
        chosen, late, early = (
            float(ours[seed] - (values[seed] if method == "ditto" else 0.0))
            for values in (selected, quarter, before)
        )
        at = {"selected": {"expected_accuracy_b": chosen}}
        at["quarter"] = {"expected_accuracy_b": late, "evaluations": 3, "expected_accuracy": 0.5}
        rounds = [{"round": r, "evaluated": True, "expected_accuracy_b": early}
                  for r in range(1, 17)]  # fmt: skip
        both.append(Run(method, seed, skew="iid", rounds=rounds, **at))
    return comparisons(Summary(summary_of(both, [named("one", ["ditto"])])))[0]


CLEAR, LESS, NONE = spread(0.05, 0.01), spread(0.04, 0.01, key=5), spread(0.0, 0.03, key=4)


@pytest.mark.parametrize(
    ("rounds", "verdict", "remark"),
    [
        ((CLEAR, LESS, CLEAR), "higher", ""),
        ((CLEAR, NONE, CLEAR), "undecided (selected round: higher; last quarter: undecided)", ""),
        ((CLEAR, CLEAR, NONE), "higher", "in the quarter before the last: undecided"),
        ((CLEAR, CLEAR, -CLEAR), "higher", "in the quarter before the last: lower"),
        ((NONE, NONE, CLEAR), "undecided", ""),
    ],
)
def test_a_verdict_needs_the_last_quarter_and_says_a_weaker_word_before(
    summary_of, rounds, verdict, remark
) -> None:
    one = by_round(summary_of, *rounds)
    assert (one.verdict, one.remark) == (verdict, remark)


def test_records_without_a_last_quarter_have_the_last_round_beside() -> None:
    def one(difference):
        values = {"fedsdg": dict.fromkeys(SEEDS, 0.6)}
        values["ditto"] = {seed: 0.6 - difference[seed] for seed in SEEDS}
        metric = metric_named("personal_accuracy")
        name = Named("one", "fedsdg", ("ditto",), metric, Cell(Setting("digits", 10), "iid"))
        return adjusted([compare(name, values)])[0]

    both = replace(one(CLEAR), aside={"last": one(NONE)})
    assert both.verdict == "undecided (selected round: higher; last round: undecided)"


def test_equivalent_to_each_is_as_sure_as_the_least_sure(compared) -> None:
    differences = {"ditto": spread(0.0, 0.004, key=1), "fedrep": spread(0.002, 0.05, key=2)}
    one = compared(differences)["one"]
    p = []
    for d in differences.values():
        above = stats.ttest_1samp(d, -0.01, alternative="greater").pvalue
        below = stats.ttest_1samp(d, 0.01, alternative="less").pvalue
        p.append(max(above, below))
    assert p[0] < 0.05 < p[1]
    assert one.p_equivalent == pytest.approx(p[1])
    assert one.verdict == "undecided", "equivalent to one of two is not equivalent to each"
