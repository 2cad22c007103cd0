"""Where training stood: closed forms of straight lines, words by intervals, and what is said."""

import math

import numpy as np
import pytest
from scipy import stats

from fedsdg.analysis import horizon
from fedsdg.analysis.horizon import CANNOT_TELL, PAST, RISING, STEADY
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables import TABLES

from .conftest import Run, markdown

ROUNDS = 16
SEEDS = range(5)
METRIC = "personal_accuracy"


def run(method="fedsdg", seed=0, every=1, rounds=ROUNDS, skew="iid", **slopes):
    """Accuracies climb by a slope a round, from a half; personal accuracy has the headline's."""
    slopes = slopes or {METRIC: 0.0}
    rows = [
        {"round": r, "evaluated": r % every == 0}
        | {name: 0.5 + slope * r for name, slope in slopes.items() if r % every == 0}
        for r in range(1, rounds + 1)
    ]
    return Run(method, seed, skew=skew, rounds=rows, last=dict.fromkeys(slopes, 0.5))


def runs(changes, **given):
    """One run per change [shares of 1] of the headline from quarter to quarter."""
    for seed, change in enumerate(changes):
        rounds = given.get("rounds", ROUNDS)
        yield run(seed=seed, **given, **{METRIC: 4 * change / rounds})


def row(summary_of, made):
    (found,) = horizon.horizons(Summary(summary_of(made))).to_dict("records")
    return found


@pytest.mark.parametrize("every", [1, 2])
def test_the_change_of_a_straight_line_is_its_slope_times_a_quarter(summary_of, every) -> None:
    one = row(summary_of, [run(every=every, rounds=32, **{METRIC: 0.001})])
    assert one["change"] == pytest.approx(0.001 * 32 / 4)
    assert (one["rounds"], one["seeds"], one["evaluations"]) == (32, 1, 8 // every)
    assert math.isnan(one["low"]) and one["word"] == CANNOT_TELL, "one seed has no interval"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ([0.004, 0.005, 0.006, 0.005, 0.005], STEADY),  # above 0, and within a point all the same
        ([-0.004, -0.005, -0.006, -0.005, -0.005], STEADY),
        ([0.02, 0.021, 0.019, 0.02, 0.022], RISING),
        ([-0.02, -0.021, -0.019, -0.02, -0.022], PAST),
        ([0.03, -0.03, 0.02, -0.02, 0.01], CANNOT_TELL),
    ],
)
def test_the_word_is_that_of_scipys_interval(summary_of, changes, word) -> None:
    one = row(summary_of, runs(changes))
    ends = stats.ttest_1samp(changes, 0).confidence_interval()
    assert (one["low"], one["high"]) == (pytest.approx(ends.low), pytest.approx(ends.high))
    assert one["word"] == word


@pytest.mark.parametrize(
    ("every", "rounds", "evaluations", "word"),
    [(4, 48, 3, STEADY), (5, 48, 2, CANNOT_TELL), (5, 60, 3, STEADY)],
)
def test_either_quarter_needs_three_evaluations(summary_of, every, rounds, evaluations, word):
    """The arenas have sixty rounds, of which every fifth is evaluated."""
    one = row(summary_of, runs([0.0] * 5, every=every, rounds=rounds))
    assert (one["evaluations"], one["word"]) == (evaluations, word)


def test_a_round_belongs_to_one_quarter_at_most(summary_of) -> None:
    """A step between rounds 3R/4 and the next is seen whole, for any number of rounds."""
    made = []
    for rounds in (12, 13, 14, 15, 18):
        first = int(np.floor(3 * rounds / 4)) + 1
        rows = [
            {"round": r, "evaluated": True, METRIC: 0.25 if r >= first else 0.0}
            for r in range(1, rounds + 1)
        ]
        made.append(Run("krum", rounds, skew="iid", scenario=f"r{rounds}", rounds=rows))
    frame = horizon.quarters(Summary(summary_of(made)), METRIC)
    assert len(frame) == 5 and ((frame["last"] - frame["before"]) == 0.25).all()


def test_clients_that_agree_and_that_differ_are_judged_apart(summary_of) -> None:
    made = [
        run(seed=seed, expected_accuracy=0.0, expected_accuracy_a=0.01, expected_accuracy_b=-0.01)
        for seed in SEEDS
    ]
    for one in made:
        one.quarter = one.last | {"evaluations": 4}
    summary = Summary(summary_of(made))
    (cell,) = summary.cells()
    words = {
        m: horizon.horizon_of(summary, cell, "fedsdg", f"expected_accuracy{m}")
        for m in ("", "_a", "_b")
    }
    assert words == {"": STEADY, "_a": RISING, "_b": PAST}
    assert horizon.horizon_of(summary, cell, "krum") == ""


def test_the_quarter_before_the_last_can_be_read_like_a_reported_round(summary_of) -> None:
    summary = Summary(summary_of(runs([0.04, 0.08])))
    (cell,) = summary.cells()
    values = horizon.reported_values(summary, cell, METRIC, horizon.BEFORE)["fedsdg"]
    # Rounds 9 to 12 of 16: their mean is at 10.5.
    assert values == {s: pytest.approx(0.5 + 4 * c / 16 * 10.5) for s, c in enumerate((0.04, 0.08))}
    assert horizon.reported_values(summary, cell, METRIC, "selected")["fedsdg"] == {0: 0.5, 1: 0.5}


def test_labels_and_notes_say_what_was_not_steady(summary_of) -> None:
    moving = {METRIC: 4 * 0.02 / ROUNDS}
    made = []
    for seed in SEEDS:
        made += [run("fedsdg", seed), run("fedavg", seed, **moving), run("krum", seed)]
        made += [run(m, seed, skew="classes~2", **moving) for m in ("fedsdg", "fedavg")]
    summary = Summary(folder := summary_of(made))
    two_classes, iid = summary.cells()
    phrase = f"still rising at round {ROUNDS}"
    assert horizon.horizon_label(summary, two_classes) == phrase
    assert horizon.horizon_label(summary, iid) == f"{phrase}: FedAvg (samples)"
    assert horizon.horizon_label(summary, iid, ["fedsdg", "krum"]) == ""
    assert horizon.horizon_label(summary) == f"{phrase}: FedSDG, FedAvg (samples)"
    assert horizon.horizon_notes(summary) == (
        f"Still rising at round {ROUNDS}: FedSDG (2 classes); FedAvg (samples).",
    )
    text = markdown(folder, "horizon")
    assert text.count(" rising |") == 3 and text.count(" steady |") == 2
    assert len(TABLES["horizon"](summary).raw) == 5


def test_what_cannot_be_told_is_one_phrase_and_without_evaluations_there_is_none(summary_of):
    rows = [{"round": r, "evaluated": False} for r in range(1, 9)]
    summary = Summary(summary_of([Run("krum", skew="iid", rounds=rows)]))
    assert horizon.horizons(summary).empty
    assert horizon.horizon_label(summary) == "" and not horizon.horizon_notes(summary)
    summary = Summary(summary_of([run(every=8)]))
    assert horizon.horizon_label(summary) == f"not known to be steady at round {ROUNDS}"


def gated(seed, rate, method="fedsdg", **parameters):
    """Two of four clients differ; each trains 2 + client steps in each of eight rounds."""
    rounds = [{"round": r, "evaluated": True, METRIC: 0.5} for r in range(1, 9)]
    clients = [
        {"round": r, "client": k, "participated": True, "local_steps": 2 + k, "val_accuracy": 0.5}
        | {"conflicts": k > 1, "gates": [0.1 * k + 0.01 * r, 0.1 * k + 0.01 * r]}
        for r in range(1, 9)
        for k in range(4)
    ]
    config = {"training": {"eta_m": rate}, "parameters": parameters}
    return Run(method, seed, skew="iid", rounds=rounds, rows=clients, config=config)


def test_gates_move_by_the_rate_times_the_steps_of_a_median_client(summary_of) -> None:
    made = [gated(0, 0.1), gated(1, 0.1), gated(0, 0.1, "fedsdg-fixed", gate_fixed=0.5)]
    folder = summary_of(made)
    (one,) = horizon.gate_moves(Summary(folder)).to_dict("records")
    assert one["method"] == "fedsdg"
    assert one["travel"] == pytest.approx(0.1 * 8 * 3.5)  # 2, 3, 4, 5 steps a round
    assert one["gates_a"] == pytest.approx(0.05 + 0.08)
    assert one["gates_b"] == pytest.approx(0.25 + 0.08)
    assert "2.8 (gates fixed by tuning)" in markdown(folder, "horizon")
    raw = TABLES["horizon"](Summary(folder)).raw.set_index("method")
    assert raw.loc["fedsdg", "η_m × steps"] == pytest.approx(2.8)


def test_newer_records_say_themselves_how_far_gates_could_move(summary_of) -> None:
    one, moves = gated(0, 0.1), {"gates_a": 0.25, "gates_b": 0.75}
    one.result = moves | {"gate_travel": 7.0}
    (row,) = horizon.gate_moves(Summary(summary_of([one, run("krum")]))).to_dict("records")
    expected = moves | {"method": "fedsdg", "travel": 7.0}
    assert {name: row[name] for name in expected} == expected
