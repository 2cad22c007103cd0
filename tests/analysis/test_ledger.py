"""The ledger on claims and records of a test's own: verdicts, what is open, and bad entries."""

import copy
import dataclasses
import json
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats

from fedsdg.analysis.grids import published_grids
from fedsdg.analysis.inference import crossed_interval, mean_interval
from fedsdg.analysis.ledger import (
    Entry,
    judge_claims,
    read_claims,
    read_ledger,
    write_ledger,
)
from fedsdg.analysis.ledger.frozen import changed_origins, freeze
from fedsdg.analysis.ledger.page import page
from fedsdg.analysis.measures import Case, Record, answers_by_image
from fedsdg.analysis.summarise import summarise
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.trace import trace

from .conftest import Run, write_run
from .test_regret import write_arena

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "results" / "reference"

PERSONAL = {"metric": "personal_accuracy"}
BETTER = {
    "id": "better",
    "source": "002",
    "origin": "specification",
    "section": "Aims",
    "sentence": "FedSDG is better than the better of two.",
    "experiment": "arena",
    "cell": "iid",
    "method": "fedsdg",
    "measure": "accuracy",
    "arguments": PERSONAL,
    "minus": {"method": ["fedavg", "krum"]},
    "threshold": {"above": 0},
}
OPEN = {
    "id": "private",
    "source": "002",
    "origin": "specification",
    "section": "Aims",
    "sentence": "Nothing leaks.",
    "experiment": None,
    "needs": "an attack",
}
PROOF = {
    "id": "sum",
    "source": "000",
    "origin": "specification",
    "section": "Step 2",
    "sentence": "Weights sum to one.",
    "proof": "tests/test_x.py::test_y",
    "verdict": "refuted",
}
#: Method → personal accuracy of seeds 0 to 4.
ACCURACY = {
    "fedsdg": [0.90, 0.91, 0.89, 0.90, 0.92],
    "fedavg": [0.80, 0.82, 0.79, 0.81, 0.80],
    "krum": [0.87, 0.88, 0.85, 0.87, 0.88],
}
SETTING = {
    "federation": {"clients": 10, "clients_per_round": 4, "rounds": 2},
    "training": {"epochs": 3},
}


@pytest.fixture
def place(tmp_path):
    """A folder of configs and one of records, with the experiment `arena` in both."""
    (tmp_path / "config" / "extended").mkdir(parents=True)
    base = {"experiment": "arena", "skews": ["iid", "dirichlet~0.1"], "methods": [*ACCURACY]}
    (tmp_path / "config" / "config.yaml").write_text(yaml.safe_dump(base))
    other = {"experiment": "later", "scenarios": {"a": {}}, "methods": [{"type": "krum"}]}
    (tmp_path / "config" / "extended" / "later.yaml").write_text(yaml.safe_dump(other))
    for method, values in ACCURACY.items():
        for seed, value in enumerate(values):
            last = {"personal_accuracy": value}
            rounds = [{"round": r, "evaluated": True, "val_accuracy": 0.5} for r in (1, 2)]
            facts = {"skew": "iid", "last": last, "rounds": rounds, "config": SETTING}
            write_run(tmp_path / "runs" / "arena", Run(method, seed, **facts))
    summarise(tmp_path / "runs" / "arena", tmp_path / "records" / "arena")
    return tmp_path


def read(place, *claims):
    file = place / "claims.yaml"
    file.write_text(yaml.safe_dump(list(claims), allow_unicode=True))
    return read_claims(file, published_grids(place / "config"))


def judged(place, *claims) -> list[Entry]:
    return judge_claims(read(place, *claims), place / "records")


def changed(**keys):
    claim = copy.deepcopy(BETTER) | keys
    return {name: value for name, value in claim.items() if value != "gone"}


def test_grids_take_what_they_lack_from_the_base(place):
    grids = published_grids(place / "config")
    assert grids["arena"].cells == ("iid", "dirichlet~0.1")
    assert grids["later"].cells == ("iid@a", "dirichlet~0.1@a")
    assert grids["later"].rows == ("krum",)
    child = {"experiment": "later-still", "skews": ["iid"], "over": ["extended/later.yaml"]}
    (place / "config" / "extended" / "later-still.yaml").write_text(yaml.safe_dump(child))
    still = published_grids(place / "config")["later-still"]
    assert (still.cells, still.rows) == (("iid@a",), ("krum",))
    for scenarios, cells in (({"a": None, "b": {}}, ("iid@b",)), (None, ("iid",))):
        other = yaml.safe_dump(child | {"scenarios": scenarios})
        (place / "config" / "extended" / "later-still.yaml").write_text(other)
        assert published_grids(place / "config")["later-still"].cells == cells


def test_a_difference_is_paired_and_from_the_better_rival(place):
    (entry,) = judged(place, BETTER)
    assert entry.verdict == "supported"
    assert entry.compared == "fedsdg − krum"  # the higher mean of the two
    assert entry.effect == pytest.approx(3.4)  # mean of 3, 3, 4, 3, 4 points
    assert (entry.low or 0) == pytest.approx(3.4 - 2.7764 * 0.54772 / 5**0.5, abs=1e-3)
    assert entry.means == {"subject": pytest.approx(90.4), "compared": pytest.approx(87.0)}
    assert (entry.n, entry.unit) == (5, "points")
    assert entry.setting["clients_per_round"] == 4
    assert entry.horizon == "cannot tell"  # two rounds


def test_verdicts_follow_the_threshold(place):
    thresholds, krum = {"above": 3, "below": 3}, {"method": "krum"}
    entries = judged(
        place,
        *(changed(id=side, threshold={side: x}, minus=krum) for side, x in thresholds.items()),
        changed(id="wide", threshold={"above": 5}),
        changed(id="inside", threshold={"between": [2, 5]}, minus=krum),
    )
    verdicts = [entry.verdict for entry in entries]
    assert verdicts == ["undecided", "undecided", "refuted", "supported"]
    assert entries[0].reason == "the interval straddles the threshold"


def test_claims_of_one_specification_are_adjusted_for_one_another(place):
    """Benjamini and Hochberg's by hand: p of three claims, and of another specification's apart."""
    differences = [3.0, 3.0, 4.0, 3.0, 4.0]
    thresholds = {"a": 2.7, "b": 2.6, "c": 2.0}
    p = {k: stats.ttest_1samp(differences, t).pvalue for k, t in thresholds.items()}
    claims = [changed(id=k, minus={"method": "krum"}, threshold={"above": t})
              for k, t in thresholds.items()]  # fmt: skip
    other = claims[0] | {"id": "other", "source": "000"}
    seen = claims[0] | {"id": "seen", "origin": "post hoc", "seen_in": "arena"}
    entries = {entry.id: entry for entry in judged(place, *claims, other, seen, OPEN, PROOF)}
    assert 0.05 > p["a"] > p["b"] > p["c"]
    adjusted = {"c": 3 * p["c"], "b": min(1.5 * p["b"], p["a"]), "a": p["a"], "other": p["a"]}
    for name, value in adjusted.items():
        assert entries[name].p == pytest.approx(value, rel=1e-3)
        assert entries[name].verdict == ("supported" if value < 0.05 else "undecided")
    assert entries["seen"].p is None and entries["private"].p is None


def at_rounds(place, selected, quarter, before):
    """FedSDG minus Krum is these in the selected round, the last quarter and the one before."""
    for method, sign in (("fedsdg", 1.0), ("krum", 0.0)):
        for seed in range(5):
            value = {n: {"expected_accuracy": 0.7 + 0.01 * seed + sign * v[seed]}
                     for n, v in (("selected", selected), ("quarter", quarter))}  # fmt: skip
            value["quarter"] |= {"evaluations": 3}
            earlier = 0.7 + sign * before[seed]
            rounds = [{"round": r, "evaluated": True, "expected_accuracy": earlier}
                      for r in range(1, 17)]  # fmt: skip
            one = Run(method, seed, skew="iid", rounds=rounds, config=SETTING, last={}, **value)
            write_run(place / "runs" / "arena", one)
    summarise(place / "runs" / "arena", place / "records" / "arena")
    keys = {"arguments": {"metric": "expected_accuracy"}, "minus": {"method": "krum"}}
    (entry,) = judged(place, changed(**keys))
    return entry


def test_a_verdict_that_the_last_quarter_does_not_share_is_undecided(place):
    clear, none = [0.05, 0.06, 0.05, 0.055, 0.05], [0.03, -0.03, 0.02, -0.02, 0.0]
    entry = at_rounds(place, clear, none, clear)
    assert (entry.verdict, entry.quarter) == ("undecided", "undecided")
    assert entry.reason == "selected round: supported; last quarter: undecided"
    assert entry.effect == pytest.approx(5.3)
    weaker = at_rounds(place, clear, clear, none)
    assert weaker.verdict == "supported"
    assert weaker.remark == "in the quarter before the last: undecided"
    assert "in the quarter before the last" in page([weaker])
    opposite = at_rounds(place, clear, clear, [-value for value in clear])
    assert (opposite.verdict, opposite.remark) == (
        "supported",
        "in the quarter before the last: refuted",
    )


def test_each_study_is_a_family_of_its_own(place):
    """By its section: claims of one study are adjusted for one another, two studies are not."""
    first = changed(id="a", source="study", section="One", minus={"method": "krum"})
    second = first | {"id": "b", "threshold": {"above": 2.9}}
    (alone,) = judged(place, second)
    same = {entry.id: entry for entry in judged(place, first, second)}
    apart = {entry.id: entry for entry in judged(place, first, second | {"section": "Two"})}
    differences = [3.0, 3.0, 4.0, 3.0, 4.0]
    p = {k: stats.ttest_1samp(differences, t).pvalue for k, t in (("a", 0.0), ("b", 2.9))}
    assert p["a"] < p["b"] / 2
    assert same["a"].p == pytest.approx(2 * p["a"], rel=1e-3)
    assert apart["a"].p == pytest.approx(p["a"], rel=1e-3)
    assert apart["b"].p == alone.p == pytest.approx(p["b"], rel=1e-3)


def test_a_claim_that_only_the_adjustment_leaves_undecided_says_so(place):
    """Its own interval is above the threshold, p = 0.046; that of the other holds it."""
    krum = {"minus": {"method": "krum"}}
    alone = changed(id="alone", threshold={"above": 2.7}, **krum)
    wide = changed(id="wide", threshold={"above": 3.3}, **krum)
    assert judged(place, alone)[0].verdict == "supported"
    entries = judged(place, alone, wide)
    assert [entry.verdict for entry in entries] == ["undecided", "undecided"]
    assert entries[0].low > 2.7 and entries[1].low < 3.3 < entries[1].high
    assert entries[0].reason == "not after the adjustment for the other claims of its family"
    assert entries[1].reason == "the interval straddles the threshold"


def test_the_words_of_the_last_quarter_are_adjusted_as_well(place):
    """p = 0.046 there alone, twice that in a family of two whose other claim is undecided there."""
    clear = [0.05, 0.06, 0.05, 0.055, 0.05]
    at_rounds(place, clear, [0.03, 0.03, 0.04, 0.03, 0.04], clear)
    keys = {"arguments": {"metric": "expected_accuracy"}, "minus": {"method": "krum"}}
    first = changed(id="first", threshold={"above": 2.7}, **keys)
    second = changed(id="second", threshold={"above": 3.3}, **keys)
    assert judged(place, first)[0].verdict == "supported"
    entry = judged(place, first, second)[0]
    assert entry.verdict == "undecided"
    assert entry.reason == "selected round: supported; last quarter: undecided"


CELLS = {
    "id": "small",
    "source": "study",
    "origin": "hypothesis",
    "section": "Cross",
    "sentence": "FedSDG is at most three points below the best row in both cells, and no other is.",
    "cells": ["one:iid", "two:iid"],
    "method": "fedsdg",
    "measure": "regret",
    "arguments": {"metric": "expected_accuracy", "others": "none"},
    "threshold": {"below": 3},
}
#: Points of five seeds beside their mean; of another row the same in another order.
SPREAD, OTHER = np.array([0.5, -0.4, 0.3, -0.6, 0.2]), np.array([-0.6, 0.5, 0.2, 0.3, -0.4])


def with_regrets(place, fedsdg, krum=9.0):
    """FedAvg is the best of cell one and eight points below Krum in two, where `krum` is 0.

    ``fedsdg`` are the points that FedSDG is below the best, and ``krum`` those of Krum in one.
    """
    best = 90 + np.array([1.0, -1.0, 0.5, -0.5, 0.0])
    points = {
        "one": {"fedavg": 0 * SPREAD, "krum": krum + OTHER, "fedsdg": fedsdg[0] + SPREAD},
        "two": {"krum": 0 * SPREAD, "fedavg": 8 + OTHER, "fedsdg": fedsdg[1] + SPREAD},
    }
    for name, rows in points.items():
        listed = {row: ((best - gap) / 100).tolist() for row, gap in rows.items()}
        listed["centralised"] = ((best + 3) / 100).tolist()  # an oracle, which is no row
        write_arena(place, name, {"iid": listed})


def p_below(gaps):
    return stats.ttest_1samp(gaps, 3, alternative="less").pvalue


def test_a_claim_about_several_cells_and_no_other_row_by_hand(place):
    """Below 3 in each costs nothing; that another row is above in one of two costs the choice."""
    with_regrets(place, (1.0, 2.0))
    (entry,) = judged(place, CELLS)
    elsewhere = [2 * (1 - p_below(row + OTHER)) for row in (8.0, 9.0)]
    p = max(p_below(1 + SPREAD), p_below(2 + SPREAD), *elsewhere)
    assert (entry.verdict, entry.n, entry.unit) == ("supported", 5, "points")
    assert entry.p == pytest.approx(2 * p, rel=1e-3)
    assert (entry.effect, entry.cell) == (pytest.approx(2.0, abs=1e-6), "iid")
    assert entry.experiment == "two", "the numbers are those of its largest regret"
    assert entry.compared == "fedsdg and no other row, the nearest fedavg"
    assert entry.means == pytest.approx({"subject": 2.0, "compared": 8.0})


def test_one_cell_above_the_threshold_refutes_a_claim_about_all(place):
    with_regrets(place, (1.0, 6.0))
    alone, entry = (
        judged(place, CELLS | {"arguments": arguments})[0]
        for arguments in ({"metric": "expected_accuracy"}, CELLS["arguments"])
    )
    p = 2 * (1 - p_below(6 + SPREAD))
    assert (alone.verdict, entry.verdict) == ("refuted", "refuted")
    assert alone.p == pytest.approx(2 * p, rel=1e-3), "picked among two cells"
    assert entry.p == pytest.approx(3 * 2 * p, rel=1e-3), "and among the claims on three rows"


def test_another_row_below_the_threshold_everywhere_refutes_that_there_is_none(place):
    with_regrets(place, (1.0, 2.0), krum=1.0)
    (entry,) = judged(place, CELLS)
    assert (entry.verdict, entry.means["compared"]) == ("refuted", pytest.approx(1.0))
    assert entry.p == pytest.approx(3 * 2 * p_below(1 + OTHER), rel=1e-3)
    assert judged(place, CELLS | {"arguments": {"metric": "expected_accuracy"}})[0].verdict == (
        "supported"
    )


def test_a_row_that_may_be_below_as_well_leaves_the_claim_undecided(place):
    with_regrets(place, (1.0, 2.0), krum=3.1)
    (entry,) = judged(place, CELLS)
    assert (entry.verdict, entry.reason) == ("undecided", "it may hold of krum")
    with_regrets(place, (1.0, 2.9))
    assert judged(place, CELLS)[0].reason == "the interval straddles the threshold"


def test_a_claim_about_cells_is_open_until_all_of_them_are_recorded(place):
    every = CELLS | {"cells": ["one:iid", "two:iid", "three:iid"]}
    with_regrets(place, (1.0, 2.0))
    (entry,) = judged(place, every)
    assert (entry.verdict, entry.reason) == ("open", "there is no record of three yet")
    assert entry.measure.endswith(" in each of one:iid, two:iid, three:iid")
    gone = [place / "records" / name / "runs.parquet" for name in ("one", "two")]
    for file in gone:
        file.rename(file.with_suffix(".gone"))
    reason = "there is no record of one, two and three yet"
    assert judged(place, every)[0].reason == reason
    for file in gone:
        file.with_suffix(".gone").rename(file)
    further = CELLS | {"cells": [*CELLS["cells"], "two:iid@later"]}
    (entry,) = judged(place, further)
    assert entry.reason == "two: the record has no run of fedsdg at iid@later yet"


def test_a_claim_about_cells_is_traced_to_all_rows_of_each(place):
    with_regrets(place, (1.0, 2.0))
    (place / "results").mkdir()
    (place / "results" / "reference").symlink_to(place / "records")
    (place / "claims.yaml").write_text(yaml.safe_dump([CELLS]))
    places = [place / name for name in ("claims.yaml", "config", "records", "claims.md")]
    write_ledger(*places)
    found = trace(place / "results" / "reference" / "ledger.json", "small")
    assert [*found["seeds"].values()] == pytest.approx(list(2 + SPREAD), abs=1e-3)
    behind = {(run["experiment"], run["method"], run["seed"]) for run in found["runs"]}
    assert len(behind) == len(found["runs"]) == 2 * 4 * 5


def test_a_claim_about_cells_is_frozen_with_its_experiments(place):
    records = place / "records"
    assert freeze(read(place, CELLS), records) == 1
    assert dict(changed_origins(read(place, CELLS | {"cells": ["one:iid"]}), records)) == {}
    with_regrets(place, (1.0, 2.0))
    changes = dict(changed_origins(read(place, CELLS | {"cells": ["one:iid"]}), records))
    assert "what it claims was changed" in changes["small"]


def with_gates(place, **rates):
    """Method → η_m; eight rounds of two steps each, so that η_m × steps is 16 · η_m."""
    for seed, (method, rate) in product(range(5), rates.items()):
        rows = [
            {"round": r, "client": k, "participated": True, "local_steps": 2, "val_accuracy": 0.5}
            | {"gates": [0.01, 0.02]}
            for r in range(1, 9)
            for k in range(3)
        ]
        rounds = [{"round": r, "evaluated": True} for r in range(1, 9)]
        config = SETTING | {"training": {"epochs": 1, "eta_m": rate}}
        one = Run(method, seed, skew="iid", rounds=rounds, rows=rows, config=config)
        write_run(place / "runs" / "arena", one)
    summarise(place / "runs" / "arena", place / "records" / "arena")


GATES = changed(id="gates", measure="gate share", arguments={"below": 0.1}, minus="gone",
                threshold={"above": 90})  # fmt: skip


@pytest.mark.parametrize(("rate", "verdict"), [(0.1, "undecided"), (0.5, "supported")])
def test_gates_that_cannot_have_moved_decide_no_claim_about_gates(place, rate, verdict):
    with_gates(place, fedsdg=rate)
    (entry,) = judged(place, GATES)
    assert (entry.verdict, entry.effect) == (verdict, 100.0)
    if verdict == "undecided":
        assert entry.reason == "gates fixed by tuning: η_m × steps is 1.6, below 3"


def test_gates_of_the_row_compared_with_must_have_moved_as_well(place):
    with_gates(place, fedsdg=0.5, fedavg=0.1)
    claim = GATES | {"minus": {"method": "fedavg"}, "threshold": {"below": 1}}
    (entry,) = judged(place, claim)
    assert (entry.verdict, entry.effect) == ("undecided", 0.0)
    assert entry.reason == "gates fixed by tuning: η_m × steps is 1.6, below 3"
    with_gates(place, fedavg=0.5)
    assert judged(place, claim)[0].verdict == "supported"


def test_what_fixed_gates_leave_undecided_costs_other_claims_nothing(place):
    with_gates(place, fedsdg=0.1)
    other = changed(method="krum", minus={"method": "fedavg"}, threshold={"above": 5})
    alone, beside = judged(place, other)[0], judged(place, GATES, other)[1]
    assert beside.p == alone.p is not None


def test_a_level_has_an_interval_over_seeds_and_images(place):
    """Where the record holds which images each client is right about; else over seeds alone."""
    rng = np.random.default_rng(2)
    easy = rng.random(37) < 0.5  # images that nearly everybody is right about
    for seed in range(5):
        right = rng.random((6, 37)) < np.where(easy, 0.95, 0.4)
        rows = [
            {"round": r, "client": k, "participated": True, "val_accuracy": 0.5}
            | ({"answers": np.packbits(right[k]).tobytes()} if r == 2 else {})
            for r in (1, 2)
            for k in range(6)
        ]
        level = {"expected_accuracy": float(right.mean())}
        rounds = [{"round": r, "evaluated": True} for r in (1, 2)]
        one = Run("fedsdg", seed, skew="iid", rounds=rounds, rows=rows, config=SETTING,
                  last=level, quarter=level | {"evaluations": 1})  # fmt: skip
        write_run(place / "runs" / "arena", one)
    summarise(place / "runs" / "arena", place / "records" / "arena")
    claim = changed(arguments={"metric": "expected_accuracy"}, minus="gone",
                    threshold={"above": 10})  # fmt: skip
    (entry,) = judged(place, claim)
    record = Record(Summary(place / "records" / "arena"))
    case = Case("iid", "fedsdg", {"metric": "expected_accuracy"})
    images = answers_by_image(record, case, range(5))
    assert images is not None and images.shape == (5, 37)
    levels = images.mean(axis=1)
    wide = crossed_interval(100 * levels, 100 * images)
    assert (entry.low, entry.high) == pytest.approx((wide.low, wide.high), rel=1e-4)
    narrow = mean_interval(100 * levels)
    assert entry.high - entry.low > 1.5 * (narrow.high - narrow.low)


def test_a_value_alone_and_a_ratio(place):
    alone = changed(id="alone", minus="gone", threshold={"above": 89})
    ratio = changed(id="ratio", minus="gone", over={"method": "fedavg"}, threshold={"above": 1})
    first, second = judged(place, alone, ratio)
    assert (first.effect, first.unit, first.means) == (pytest.approx(90.4), "%", {})
    assert second.unit == "times"
    assert second.effect == pytest.approx(
        sum(a / b for a, b in zip(ACCURACY["fedsdg"], ACCURACY["fedavg"], strict=True)) / 5,
        rel=1e-4,
    )


def test_what_is_counted_has_no_horizon(place):
    claim = changed(measure="degenerate rounds", arguments={}, minus="gone", threshold={"below": 1})
    file = place / "runs" / "arena"
    for path in file.rglob("result.json"):
        path.write_text(
            path.read_text().replace('"rounds": 2', '"degenerate_rounds": 0, "rounds": 2')
        )
    summarise(file, place / "records" / "arena")
    (entry,) = judged(place, claim)
    assert (entry.verdict, entry.horizon) == ("supported", "")


def test_the_other_side_may_stand_in_another_record(place):
    """The same runs but for the level of accuracy: the difference is that of the levels."""
    for seed, value in enumerate(ACCURACY["krum"]):
        rounds = [{"round": 1, "val_accuracy": 0.5}]
        last = {"personal_accuracy": value - 0.2}
        facts = {"skew": "iid", "scenario": "a", "last": last, "rounds": rounds, "config": SETTING}
        write_run(place / "runs" / "later", Run("krum", seed, **facts))
    other = {"experiment": "later", "cell": "iid@a"}
    claim = changed(method="krum", minus=other, threshold={"between": [19.9, 20.1]})
    (before,) = judged(place, claim)
    assert (before.verdict, before.reason) == ("open", "there is no record of later yet")
    summarise(place / "runs" / "later", place / "records" / "later")
    (entry,) = judged(place, claim)
    assert (entry.verdict, entry.effect) == ("supported", pytest.approx(20.0))
    assert entry.compared == "krum − the same (cell iid@a, experiment later)"


def test_what_cannot_be_answered_is_open_with_its_reason(place):
    entries = judged(
        place,
        OPEN,
        changed(id="later", experiment="later", cell="iid@a", method="krum", minus="gone"),
        changed(id="cell", cell="dirichlet~0.1"),
        changed(id="column", arguments={"metric": "expected_accuracy_b"}),
    )
    assert [entry.verdict for entry in entries] == ["open"] * 4
    assert [entry.reason for entry in entries] == [
        "needs an attack",
        "there is no record of later yet",
        "the record has no run of fedsdg at dirichlet~0.1 yet",
        "the record has no expected_accuracy_b of fedsdg at iid yet",
    ]


def test_a_record_of_two_data_sets_is_judged_by_the_one_that_is_named(place):
    """Both have the same seeds, and the second is far worse."""
    config = yaml.safe_load((place / "config" / "config.yaml").read_text())
    text = yaml.safe_dump({**config, "datasets": ["digits", "views"]})
    (place / "config" / "config.yaml").write_text(text)
    for seed in range(5):
        facts = {"skew": "iid", "last": {"personal_accuracy": 0.12}, "config": SETTING}
        one = Run("fedsdg", seed, dataset="views", rounds=[{"round": 1}], **facts)
        write_run(place / "runs" / "arena", one)
    summarise(place / "runs" / "arena", place / "records" / "arena")
    alone = changed(minus="gone", threshold={"above": 50})
    named = [alone | {"id": name, "dataset": name} for name in ("digits", "views")]
    across = alone | {"id": "across", "dataset": "digits", "minus": {"dataset": "views"}}
    entries = judged(place, *named, across)
    assert [entry.effect for entry in entries] == pytest.approx([90.4, 12.0, 78.4])
    assert entries[2].compared == "fedsdg − the same (dataset views)"
    with pytest.raises(ValueError, match="better: arena has the data sets digits, views; name one"):
        read(place, alone)
    with pytest.raises(ValueError, match="better: arena has no data set 'view'; did you mean"):
        read(place, alone | {"dataset": "view"})


def test_few_seeds_decide_nothing(place):
    for seed in (3, 4):
        folder = place / "runs" / "arena" / "digits" / "clients~10" / "iid" / "krum"
        (folder / f"seed~{seed}" / "result.json").unlink()
    summarise(place / "runs" / "arena", place / "records" / "arena")
    (entry,) = judged(place, changed(minus={"method": "krum"}))
    assert (entry.verdict, entry.reason, entry.n) == ("undecided", "too few seeds", 3)
    assert entry.low is None


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        (
            changed(experiment="arenas"),
            "better names the unknown experiment 'arenas'; .*or correct it; did you mean 'arena'",
        ),
        (changed(measure="acuracy"), "better names the unknown measure 'acuracy'; .*'accuracy'"),
        (changed(method="fedsgd"), "better: arena has no row 'fedsgd'; did you mean 'fedsdg'"),
        (changed(minus={"method": "krumm"}), "better: arena has no row 'krumm'"),
        (changed(cell="iid@half"), "better: arena has no cell 'iid@half'; its cells are iid"),
        (changed(minus={"cell": "x"}), "better: arena has no cell 'x'"),
        (changed(minus={"experiment": "x"}), "better names the unknown experiment 'x'"),
        (changed(minus={"experiment": "later"}), "better: later has no cell 'iid'; its"),
        (changed(threshold={"over": 1}), "better: the threshold is .*write"),
        (changed(arguments={}), "better: the measure 'accuracy' needs the argument 'metric'"),
        (changed(arguments={"metric": "acc"}), "better: the argument 'metric' is 'acc', but must"),
        (changed(arguments={**PERSONAL, "at": 1}), "better: .* has no argument 'at'; it takes"),
        (changed(over={"method": "krum"}), "better has both 'minus' and 'over'; remove one"),
        (changed(sentence="gone"), "better lacks 'sentence'; add it"),
        (changed(colour="red"), "better has an unknown key 'colour'"),
        (changed(id="gone"), "claim 1 has no id; give it one"),
        (changed(threshold={"below": 1}), "better: against several methods the thr.*name one"),
        (CELLS | {"cells": "one:iid"}, "small: 'cells' is 'one:iid'; write a list of exp"),
        (CELLS | {"cells": ["one"]}, "small: 'cells' is .*write a list of experiment:cell"),
        (CELLS | {"cells": ["one:iid"] * 2}, "small names the cell 'one:iid' twice"),
        (CELLS | {"cells": ["arena:idd"]}, "small: arena has no cell 'idd'; its cells are iid"),
        (CELLS | {"origin": "specification"}, "small names the unknown experiment 'one'"),
        (CELLS | {"minus": {"method": "krum"}}, "small has an unknown key 'minus'"),
        (CELLS | {"experiment": "arena"}, "small has an unknown key 'experiment'"),
        (
            CELLS | {"arguments": {"metric": "expected_accuracy", "others": "some"}},
            "small: the argument 'others' is 'some', but must be one of none",
        ),
        ({**OPEN, "needs": ""}, "private lacks 'needs'; add it: what it would take"),
        ({**PROOF, "verdict": "open"}, "sum: the verdict of a proof is 'open'; write supported"),
    ],
)
def test_a_bad_entry_is_named_with_its_remedy(place, claim, said):
    with pytest.raises(ValueError, match=said) as caught:
        read(place, claim)
    assert "\n" not in str(caught.value)


def test_two_claims_of_one_id_are_refused(place):
    with pytest.raises(ValueError, match="2 claims have the id 'better'; rename"):
        read(place, BETTER, BETTER)


def test_the_page_counts_every_verdict_and_hides_none(place):
    claims = [OPEN, changed(id="lost", threshold={"above": 5}), BETTER, PROOF]
    text = page(judged(place, *claims))
    counts = {
        line.split("|")[1].strip(): line.split("|")[2].strip()
        for line in text.splitlines()
        if line.startswith("| **")
    }
    assert counts == {
        "**refuted**": "2",
        "**supported**": "1",
        "**undecided**": "0",
        "**no verdict**": "0",
        "**open**": "1",
    }
    # In a table what is refuted comes first, whatever the order of the claims.
    places = [text.index(f'<a id="{name}"></a>') for name in ("sum", "lost", "better", "private")]
    assert places == sorted(places)
    assert "+3.4 points [+2.7, +4.1]<br>(90.4 and 87.0)" in text


def test_the_written_ledger_is_the_one_that_was_judged(place):
    (place / "claims.yaml").write_text(yaml.safe_dump([BETTER, OPEN, PROOF]))
    places = [place / name for name in ("claims.yaml", "config", "records", "claims.md")]
    entries = write_ledger(*places)
    assert read_ledger(place / "records" / "ledger.json") == entries
    assert (place / "claims.md").read_text() == page(entries)
    assert {field.name for field in dataclasses.fields(Entry)} >= {"visible", "horizon"}


def test_records_that_a_claim_compares_share_kernel_and_test_set():
    """Pairs by seed of two records: with other test images they would be no pairs."""
    claims = yaml.safe_load((ROOT / "claims.yaml").read_text())["claims"]
    crossed = [one for one in claims if "experiment" in one.get("minus", {})]
    assert crossed
    for claim in crossed:
        pairs = claim["experiment"], claim["minus"]["experiment"]
        said = [
            {
                (config["training"].get("kernel"), config["partition"].get("test"))
                for text in pd.read_parquet(RECORDS / name / "runs.parquet")["config"]
                for config in [json.loads(text)]
            }
            for name in pairs
        ]
        assert said[0] == said[1] and len(said[0]) == 1, claim["id"]


LATER = changed(id="later", origin="hypothesis", experiment="cross", cell="iid@half")


def test_a_hypothesis_may_be_about_a_run_that_is_still_to_be_made(place):
    post_hoc = changed(id="seen", origin="post hoc", seen_in="arena")
    entry, seen, plain = judged(place, LATER, post_hoc, BETTER)
    assert (seen.verdict, seen.p) == ("no verdict", None)
    assert (seen.effect, seen.low, seen.high) == (plain.effect, plain.low, plain.high)
    assert (entry.verdict, entry.reason, entry.effect) == ("open", "declared, not yet run", None)
    text = page([entry, seen, plain])
    assert "*(Aims; hypothesis)*" in text and "*(Aims; post hoc, seen in arena)*" in text
    assert entry.to_dict()["origin"] == "hypothesis"
    with pytest.raises(ValueError, match="unknown experiment 'cross'"):
        read(place, LATER | {"origin": "specification"})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"origin": "hypothetis"}, "origin is 'hypothetis', but must be .*mean 'hypothesis'"),
        ({"origin": "post hoc"}, "is post hoc, but lacks 'seen_in'"),
        ({"origin": "hypothesis", "seen_in": "arena"}, "has 'seen_in', but is not post hoc"),
        ({"origin": "post hoc", "seen_in": "arenas"}, "no experiment and no commit.*'arena'"),
    ],
)
def test_what_is_wrong_with_an_origin_is_named(place, keys, message):
    with pytest.raises(ValueError, match=f"claim better.*{message}"):
        read(place, changed(**keys))


def test_a_claim_is_frozen_with_its_run(place):
    """Before the run a hypothesis may be changed and frozen anew, afterwards nothing of it."""
    records = place / "records"
    run, post = changed(origin="hypothesis"), changed(id="p", origin="post hoc", seen_in="arena")
    claims = (run, post, LATER, OPEN, PROOF)
    assert freeze(read(place, *claims), records) == 5
    before = (records / "origins.json").read_bytes()
    reworded = run | {"note": "Said more plainly.", "section": "Goals"}
    assert freeze(read(place, reworded, *claims[1:]), records) == 0
    assert (records / "origins.json").read_bytes() == before

    def changes(*claims):
        return dict(changed_origins(read(place, *claims), records))

    assert changes(*claims) == {}
    for other, sentence in (
        (run | {"origin": "specification"}, "origin was changed from 'hypothesis' to 'specificat"),
        (run | {"threshold": {"above": 1}}, "what it claims was changed since"),
        (run | {"minus": {"method": "krum"}}, "what it claims was changed since"),
        (run | {"sentence": "FedSDG is best."}, "what it claims was changed since"),
    ):
        found = changes(other, *claims[1:])
        assert list(found) == ["better"] and sentence in found["better"]
        assert "arena has been run" in found["better"]
        with pytest.raises(ValueError, match="claim better"):
            freeze(read(place, other, *claims[1:]), records)
    assert (
        "seen in was changed from 'arena' to 'later'"
        in changes(run, post | {"seen_in": "later"}, *claims[2:])["p"]
    )
    assert "was removed" in changes(*claims[1:])["better"]
    moved = LATER | {"experiment": "arena", "cell": "iid"}
    assert list(changes(run, post, moved, *claims[3:])) == ["later"], "to a run that was known"
    sharper = LATER | {"threshold": {"above": 2}}
    assert changes(run, post, sharper, *claims[3:]) == {}
    assert freeze(read(place, run, post, sharper, *claims[3:]), records) == 1
    (records / "cross").mkdir()
    (records / "cross" / "runs.parquet").touch()
    assert list(changes(*claims)) == ["later"]
