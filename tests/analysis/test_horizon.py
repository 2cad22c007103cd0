"""Whether training had settled: closed forms of straight lines, thresholds, and what is said."""

import numpy as np
import pytest

from fedsdg.analysis.horizon import (
    BEFORE,
    SETTLED,
    UNJUDGED,
    horizon_label,
    horizon_notes,
    horizons,
)
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables import write_table

from .conftest import Run

ROUNDS = 16


def run(method="fedsdg", seed=0, every=1, rounds=ROUNDS, gates=None, skew="iid", **slopes):
    """Metrics climb by a slope a round, from a half; ``gates``: slopes of a client's gates."""
    evaluated = [r for r in range(1, rounds + 1) if r % every == 0]
    rows = [
        {"round": r, "evaluated": r in evaluated}
        | {name: 0.5 + slope * r for name, slope in slopes.items() if r in evaluated}
        for r in range(1, rounds + 1)
    ]
    clients = [
        {"round": r, "client": client, "participated": True}
        | {"gates": None if own is None else [0.5 + slope * r for slope in own]}
        for r in range(1, rounds + 1)
        for client, own in enumerate(gates or [])
    ]
    return Run(method, seed, skew=skew, rounds=rows, rows=clients)


def judged(summary_of, *runs):
    return {one.method: one for one in horizons(Summary(summary_of(runs)))}


@pytest.mark.parametrize("every", [1, 2])
def test_the_change_of_a_straight_line_is_its_slope_times_a_quarter(summary_of, every) -> None:
    rounds = 32
    slopes = {"val_accuracy": 0.001, "global_val_accuracy": -0.0005}
    one = judged(summary_of, run(every=every, rounds=rounds, **slopes))["fedsdg"]
    assert one.val_accuracy == pytest.approx(0.001 * rounds / 4)
    assert one.global_val_accuracy == pytest.approx(0.0005 * rounds / 4)
    assert (one.rounds, one.seeds, one.evaluations) == (rounds, 1, 8 // every)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"val_accuracy": 0.0099, "global_val_accuracy": -0.0099}, SETTLED),
        ({"val_accuracy": -0.0101, "global_val_accuracy": 0.0}, BEFORE),
        ({"val_accuracy": 0.0, "global_val_accuracy": 0.0101}, BEFORE),
        ({"val_accuracy": 0.0099}, SETTLED),
        ({"global_val_accuracy": 0.0}, UNJUDGED),
    ],
)
def test_accuracies_settle_below_a_point(summary_of, changes, verdict) -> None:
    slopes = {name: 4 * change / ROUNDS for name, change in changes.items()}
    assert judged(summary_of, run(**slopes))["fedsdg"].verdict == verdict


@pytest.mark.parametrize(("mean", "verdict"), [(0.0199, SETTLED), (0.0201, BEFORE)])
def test_gates_settle_below_a_fiftieth_on_average_over_clients(summary_of, mean, verdict) -> None:
    """Opposite movements of gates do not cancel; clients without gates do not count."""
    a, b = 4 * 0.5 * mean / ROUNDS, 4 * 1.5 * mean / ROUNDS
    gates = [[a, -a], [-b, b], None]
    one = judged(summary_of, run(gates=gates, val_accuracy=0.0))["fedsdg"]
    assert one.gates == pytest.approx(mean)
    assert one.verdict == verdict


def test_gates_are_read_at_evaluations_alone(summary_of) -> None:
    slope = 0.002
    one = judged(summary_of, run(every=3, rounds=24, gates=[[slope]], val_accuracy=0.0))["fedsdg"]
    # Evaluations at 21, 24 and at 15, 18.
    assert one.gates == pytest.approx(slope * 6)


def test_seeds_are_averaged_before_the_change_is_judged(summary_of) -> None:
    up, down = 4 * 0.03 / ROUNDS, -4 * 0.025 / ROUNDS
    one = judged(
        summary_of,
        run(seed=0, val_accuracy=up, gates=[[0.0]]),
        run(seed=1, val_accuracy=down, gates=[[0.04 / ROUNDS]]),
    )["fedsdg"]
    assert one.val_accuracy == pytest.approx(0.0025)
    assert one.gates == pytest.approx((0 + 0.01) / 2)
    assert (one.seeds, one.verdict) == (2, SETTLED)


@pytest.mark.parametrize(("every", "verdict"), [(4, SETTLED), (5, UNJUDGED)])
def test_either_quarter_needs_three_evaluations(summary_of, every, verdict) -> None:
    assert judged(summary_of, run(every=every, rounds=48, val_accuracy=0.0))["fedsdg"].verdict == (
        verdict
    )


def test_the_arenas_of_sixty_rounds_have_three_evaluations_in_either_quarter(summary_of) -> None:
    one = judged(summary_of, run(every=5, rounds=60, val_accuracy=0.0))["fedsdg"]
    assert (one.evaluations, one.verdict) == (3, SETTLED)


def test_a_round_belongs_to_one_quarter_at_most(summary_of) -> None:
    """A step between rounds 3R/4 and the next is seen whole, for any number of rounds."""
    for rounds in (12, 13, 14, 15, 18):
        first = int(np.floor(3 * rounds / 4)) + 1
        rows = [
            {"round": r, "evaluated": True, "val_accuracy": 0.25 if r >= first else 0.0}
            for r in range(1, rounds + 1)
        ]
        made = Run("krum", rounds, skew="iid", scenario=f"r{rounds}", rounds=rows)
        (one,) = horizons(Summary(summary_of([made])))[-1:]
        assert one.val_accuracy == 0.25


def test_labels_and_notes_say_what_has_not_settled(summary_of, tmp_path) -> None:
    moving = 4 * 0.02 / ROUNDS
    folder = summary_of(
        [
            run("fedsdg", val_accuracy=0.0),
            run("fedavg", val_accuracy=moving),
            run("krum", val_accuracy=0.0),
            run("fedsdg", skew="classes~2", val_accuracy=moving),
            run("fedavg", skew="classes~2", val_accuracy=moving),
        ]
    )
    summary = Summary(folder)
    two_classes, iid = summary.cells()
    phrase = f"before convergence, round {ROUNDS}"
    assert horizon_label(summary, two_classes) == phrase
    assert horizon_label(summary, iid) == f"{phrase}: FedAvg (samples)"
    assert horizon_label(summary, iid, ["fedsdg", "krum"]) == ""
    assert horizon_label(summary) == f"{phrase}: FedSDG, FedAvg (samples)"
    assert horizon_notes(summary) == (
        f"Before convergence, round {ROUNDS}: FedSDG (2 classes); FedAvg (samples).",
    )
    csv, markdown, _ = write_table(folder, "horizon", tmp_path / "horizon")
    text = markdown.read_text("utf-8")
    assert text.count("before convergence") == 3 and text.count("settled") >= 2
    assert len(csv.read_text("utf-8").splitlines()) == 1 + 5


def test_one_phrase_stands_for_what_cannot_be_told(summary_of) -> None:
    summary = Summary(summary_of([run(every=8, val_accuracy=0.0)]))
    phrase = f"before convergence or not judged, round {ROUNDS}"
    assert horizon_label(summary) == phrase
    assert horizon_notes(summary) == (f"{phrase.capitalize()}: all methods.",)
