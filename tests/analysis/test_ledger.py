"""The ledger on claims and records of a test's own: verdicts, what is open, and bad entries."""

import copy
import json
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats

from fedsdg.analysis.grids import published_grids
from fedsdg.analysis.inference import crossed_interval, mean_interval
from fedsdg.analysis.ledger import Entry, judge_claims, read_claims, read_ledger, write_ledger
from fedsdg.analysis.ledger.frozen import changed_origins, freeze
from fedsdg.analysis.ledger.page import page
from fedsdg.analysis.measures import Case, Record, answers_by_image
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.trace import trace

from .conftest import Run, make_record
from .test_regret import write_arena

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "results" / "reference"

PERSONAL, EXPECTED = {"metric": "personal_accuracy"}, {"metric": "expected_accuracy"}
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
OF = {"source": "002", "origin": "specification", "section": "Aims"}
OPEN = {**OF, "id": "private", "sentence": "Nothing leaks.", "experiment": None, "needs": "x"}
PROOF = {
    **OF,
    "source": "000",
    "id": "sum",
    "sentence": "Weights sum to one.",
    "verdict": "refuted",
}
PROOF |= {"proof": "tests/test_x.py::test_y"}
#: Method → personal accuracy of seeds 0 to 4.
ACCURACY = {
    "fedsdg": [0.90, 0.91, 0.89, 0.90, 0.92],
    "fedavg": [0.80, 0.82, 0.79, 0.81, 0.80],
    "krum": [0.87, 0.88, 0.85, 0.87, 0.88],
}
#: Points by which FedSDG is above Krum.
DIFFERENCES = [3.0, 3.0, 4.0, 3.0, 4.0]
SETTING = {
    "federation": {"clients": 10, "clients_per_round": 4, "rounds": 2},
    "training": {"epochs": 3},
}
KRUM = {"minus": {"method": "krum"}}


def changed(**keys):
    claim = copy.deepcopy(BETTER) | keys
    return {name: value for name, value in claim.items() if value != "gone"}


def run(method, seed, rounds=2, **facts):
    listed = rounds
    if isinstance(rounds, int):
        listed = [
            {"round": r, "evaluated": True, "val_accuracy": 0.5} for r in range(1, rounds + 1)
        ]
    return Run(method, seed, rounds=listed, **{"skew": "iid", "config": SETTING} | facts)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder of configs and one of records, with the experiment `arena` in both."""
    folder = tmp_path_factory.mktemp("ledger")
    (folder / "config" / "extended").mkdir(parents=True)
    base = {"experiment": "arena", "skews": ["iid", "dirichlet~0.1"], "methods": [*ACCURACY]}
    (folder / "config" / "config.yaml").write_text(yaml.safe_dump(base))
    other = {"experiment": "later", "scenarios": {"a": {}}, "methods": [{"type": "krum"}]}
    (folder / "config" / "extended" / "later.yaml").write_text(yaml.safe_dump(other))
    runs = [
        run(method, seed, last={"personal_accuracy": value})
        for method, values in ACCURACY.items()
        for seed, value in enumerate(values)
    ]
    make_record(folder, "arena", runs)
    return folder


@pytest.fixture
def place(built, tmp_path):
    """A copy that may be changed."""
    return shutil.copytree(built, tmp_path / "ledger")


def read(place, *claims):
    file = place / "claims.yaml"
    file.write_text(yaml.safe_dump(list(claims), allow_unicode=True))
    return read_claims(file, published_grids(place / "config"))


def judged(place, *claims) -> list[Entry]:
    return judge_claims(read(place, *claims), place / "records")


def words(entry):
    return entry.verdict, entry.reason


def test_grids_take_what_they_lack_from_the_base(place):
    grids = published_grids(place / "config")
    assert grids["arena"].cells == ("iid", "dirichlet~0.1")
    assert grids["later"].cells == ("iid@a", "dirichlet~0.1@a")
    assert grids["later"].rows == ("krum",)
    child = {"experiment": "still", "skews": ["iid"], "over": ["later.yaml"]}
    for more, cells in (
        ({}, ("iid@a",)),
        ({"scenarios": {"a": None, "b": {}}}, ("iid@b",)),
        ({"scenarios": None}, ("iid",)),
    ):
        (place / "config" / "extended" / "still.yaml").write_text(yaml.safe_dump(child | more))
        still = published_grids(place / "config")["still"]
        assert (still.cells, still.rows) == (cells, ("krum",))


def test_a_difference_is_paired_and_from_the_better_rival(built):
    (entry,) = judged(built, BETTER)
    assert entry.verdict == "supported"
    assert entry.compared == "fedsdg − krum"  # the higher mean of the two
    assert entry.effect == pytest.approx(3.4)
    assert (entry.low or 0) == pytest.approx(3.4 - 2.7764 * 0.54772 / 5**0.5, abs=1e-3)
    assert entry.means == {"subject": pytest.approx(90.4), "compared": pytest.approx(87.0)}
    assert (entry.n, entry.unit) == (5, "points")
    assert entry.setting["clients_per_round"] == 4
    assert entry.horizon == "cannot tell"  # two rounds


def test_verdicts_follow_the_threshold(built):
    straddles = "the interval straddles the threshold"
    cases = {
        "low": ({"above": 3}, "undecided", straddles),
        "high": ({"below": 3}, "undecided", straddles),
        "wide": ({"above": 5}, "refuted", ""),
        "inside": ({"between": [2, 5]}, "supported", ""),
    }
    claims = [changed(id=name, threshold=case[0], **KRUM) for name, case in cases.items()]
    for entry in judged(built, *claims):
        assert words(entry) == cases[entry.id][1:]


def test_claims_of_one_specification_are_adjusted_for_one_another(built):
    """Benjamini and Hochberg's by hand; those of another specification or study stand apart."""
    thresholds = {"a": 2.7, "b": 2.6, "c": 2.0}
    p = {k: stats.ttest_1samp(DIFFERENCES, t).pvalue for k, t in thresholds.items()}
    claims = [changed(id=k, threshold={"above": t}, **KRUM) for k, t in thresholds.items()]
    other = claims[0] | {"id": "other", "source": "000"}
    seen = claims[0] | {"id": "seen", "origin": "post hoc", "seen_in": "arena"}
    study = [
        claim | {"id": f"{claim['id']}-{section}", "source": "study", "section": section}
        for section, claim in (("one", claims[0]), ("one", claims[1]), ("two", claims[0]))
    ]
    given = judged(built, *claims, other, seen, OPEN, PROOF, *study)
    entries = {entry.id: entry for entry in given}
    assert 0.05 > p["a"] > p["b"] > p["c"]
    adjusted = {"c": 3 * p["c"], "b": min(1.5 * p["b"], p["a"]), "a": p["a"], "other": p["a"]}
    adjusted |= {"a-one": p["a"], "b-one": min(2 * p["b"], p["a"]), "a-two": p["a"]}
    for name, value in adjusted.items():
        assert entries[name].p == pytest.approx(value, rel=1e-3)
        assert entries[name].verdict == ("supported" if value < 0.05 else "undecided")
    assert entries["seen"].p is None and entries["private"].p is None


def test_a_claim_that_only_the_adjustment_leaves_undecided_says_so(built):
    """Its own interval is above the threshold, p = 0.046; that of the other holds it."""
    alone, wide = (changed(id=str(t), threshold={"above": t}, **KRUM) for t in (2.7, 3.3))
    assert judged(built, alone)[0].verdict == "supported"
    entries = judged(built, alone, wide)
    assert entries[0].low > 2.7 and entries[1].low < 3.3 < entries[1].high
    assert [words(entry) for entry in entries] == [
        ("undecided", "not after the adjustment for the other claims of its family"),
        ("undecided", "the interval straddles the threshold"),
    ]


def at_rounds(place, selected, quarter, before):
    """FedSDG minus Krum is these in the selected round, the last quarter and the one before."""
    runs = []
    for (method, sign), seed in product((("fedsdg", 1.0), ("krum", 0.0)), range(5)):
        chosen, late, early = (v[seed] * sign for v in (selected, quarter, before))
        values = {"selected": {"expected_accuracy": 0.7 + 0.01 * seed + chosen}}
        values["quarter"] = {"expected_accuracy": 0.7 + 0.01 * seed + late, "evaluations": 3}
        rounds = [{"round": r, "evaluated": True, "expected_accuracy": 0.7 + early}
                  for r in range(1, 17)]  # fmt: skip
        runs.append(run(method, seed, rounds, **values))
    make_record(place, "arena", runs)


CLEAR, NONE = [0.05, 0.06, 0.05, 0.055, 0.05], [0.03, -0.03, 0.02, -0.02, 0.0]
LATE = changed(arguments=EXPECTED, **KRUM)


def test_a_verdict_that_the_last_quarter_does_not_share_is_undecided(place):
    at_rounds(place, CLEAR, NONE, CLEAR)
    (entry,) = judged(place, LATE)
    assert (entry.verdict, entry.quarter) == ("undecided", "undecided")
    assert entry.reason == "selected round: supported; last quarter: undecided"
    assert entry.effect == pytest.approx(5.3)
    for before, word in ((NONE, "undecided"), ([-value for value in CLEAR], "refuted")):
        at_rounds(place, CLEAR, CLEAR, before)
        (entry,) = judged(place, LATE)
        assert entry.verdict == "supported"
        assert entry.remark == f"in the quarter before the last: {word}"
        assert "in the quarter before the last" in page([entry])


def test_the_words_of_the_last_quarter_are_adjusted_as_well(place):
    """p = 0.046 there alone, twice that in a family of two whose other claim is undecided there."""
    at_rounds(place, CLEAR, [value / 100 for value in DIFFERENCES], CLEAR)
    first, second = (LATE | {"id": str(t), "threshold": {"above": t}} for t in (2.7, 3.3))
    assert judged(place, first)[0].verdict == "supported"
    entry = judged(place, first, second)[0]
    assert words(entry) == ("undecided", "selected round: supported; last quarter: undecided")


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


def with_regrets(place, *fedsdg, krum=9.0):
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
    with_regrets(place, 1.0, 2.0)
    (entry,) = judged(place, CELLS)
    elsewhere = [2 * (1 - p_below(row + OTHER)) for row in (8.0, 9.0)]
    p = max(p_below(1 + SPREAD), p_below(2 + SPREAD), *elsewhere)
    assert (entry.verdict, entry.n, entry.unit) == ("supported", 5, "points")
    assert entry.p == pytest.approx(2 * p, rel=1e-3)
    assert (entry.effect, entry.cell) == (pytest.approx(2.0, abs=1e-6), "iid")
    assert entry.experiment == "two", "the numbers are those of its largest regret"
    assert entry.compared == "fedsdg and no other row, the nearest fedavg"
    assert entry.means == pytest.approx({"subject": 2.0, "compared": 8.0})


def test_one_cell_or_another_row_refutes_a_claim_about_all_cells_and_no_other(place):
    plain = CELLS | {"arguments": EXPECTED}
    with_regrets(place, 1.0, 6.0)
    alone, entry = judged(place, plain)[0], judged(place, CELLS)[0]
    p = 2 * (1 - p_below(6 + SPREAD))
    assert (alone.verdict, entry.verdict) == ("refuted", "refuted")
    assert alone.p == pytest.approx(2 * p, rel=1e-3), "picked among two cells"
    assert entry.p == pytest.approx(3 * 2 * p, rel=1e-3), "and among the claims on three rows"
    with_regrets(place, 1.0, 2.0, krum=1.0)
    alone, entry = judged(place, plain)[0], judged(place, CELLS)[0]
    assert (alone.verdict, entry.verdict) == ("supported", "refuted")
    assert entry.means["compared"] == pytest.approx(1.0)
    assert entry.p == pytest.approx(3 * 2 * p_below(1 + OTHER), rel=1e-3)


def test_a_row_that_may_be_below_as_well_leaves_the_claim_undecided(place):
    with_regrets(place, 1.0, 2.0, krum=3.1)
    assert words(judged(place, CELLS)[0]) == ("undecided", "it may hold of krum")
    with_regrets(place, 1.0, 2.9)
    assert judged(place, CELLS)[0].reason == "the interval straddles the threshold"


def test_a_claim_about_cells_is_open_until_all_of_them_are_recorded(place):
    all_three = CELLS | {"cells": ["one:iid", "two:iid", "three:iid"]}
    assert judged(place, all_three)[0].reason == "there is no record of one, two and three yet"
    with_regrets(place, 1.0, 2.0)
    (entry,) = judged(place, all_three)
    assert words(entry) == ("open", "there is no record of three yet")
    assert entry.measure.endswith(" in each of one:iid, two:iid, three:iid")
    (entry,) = judged(place, CELLS | {"cells": [*CELLS["cells"], "two:iid@later"]})
    assert entry.reason == "two: the record has no run of fedsdg at iid@later yet"


def test_a_claim_about_cells_is_frozen_with_them_and_traced_to_all_rows_of_each(place):
    def changes():
        claim = CELLS | {"cells": ["one:iid"]}
        return dict(changed_origins(read(place, claim), place / "records"))

    assert freeze(read(place, CELLS), place / "records") == 1
    assert changes() == {}
    with_regrets(place, 1.0, 2.0)
    assert "what it claims was changed" in changes()["small"]
    (place / "results").mkdir()
    (place / "results" / "reference").symlink_to(place / "records")
    (place / "claims.yaml").write_text(yaml.safe_dump([CELLS]))
    write_ledger(*(place / name for name in ("claims.yaml", "config", "records", "claims.md")))
    found = trace(place / "results" / "reference" / "ledger.json", "small")
    assert [*found["seeds"].values()] == pytest.approx(list(2 + SPREAD), abs=1e-3)
    behind = {(run["experiment"], run["method"], run["seed"]) for run in found["runs"]}
    assert len(behind) == len(found["runs"]) == 2 * 4 * 5


def with_gates(place, **rates):
    """Method → η_m; eight rounds of two steps each, so that η_m × steps is 16 · η_m."""
    rows = [
        {"round": r, "client": k, "participated": True, "local_steps": 2, "val_accuracy": 0.5}
        | {"gates": [0.01, 0.02]}
        for r, k in product(range(1, 9), range(3))
    ]
    runs = [
        run(method, seed, 8, rows=rows, config=SETTING | {"training": {"eta_m": rate}})
        for seed, (method, rate) in product(range(5), rates.items())
    ]
    make_record(place, "arena", runs)


def test_gates_that_cannot_have_moved_decide_no_claim_about_gates(place):
    """Neither their own nor those of the row compared with; and it costs other claims nothing."""
    gates = changed(id="gates", measure="gate share", arguments={"below": 0.1}, minus="gone",
                    threshold={"above": 90})  # fmt: skip
    fixed = ("undecided", "gates fixed by tuning: η_m × steps is 1.6, below 3")
    other = changed(method="krum", minus={"method": "fedavg"}, threshold={"above": 5})
    (alone,) = judged(place, other)
    with_gates(place, fedsdg=0.1)
    entry, beside = judged(place, gates, other)
    assert (words(entry), entry.effect) == (fixed, 100.0)
    assert beside.p == alone.p is not None
    with_gates(place, fedsdg=0.5, fedavg=0.1)
    versus = gates | {"minus": {"method": "fedavg"}, "threshold": {"below": 1}}
    assert judged(place, gates)[0].verdict == "supported"
    assert words(judged(place, versus)[0]) == fixed
    with_gates(place, fedavg=0.5)
    assert judged(place, versus)[0].verdict == "supported"


def test_a_level_has_an_interval_over_seeds_and_images(place):
    """Where the record holds which images each client is right about; else over seeds alone."""
    rng = np.random.default_rng(2)
    easy = rng.random(37) < 0.5  # images that nearly everybody is right about
    runs = []
    for seed in range(5):
        right = rng.random((6, 37)) < np.where(easy, 0.95, 0.4)
        rows = [
            {"round": r, "client": k, "participated": True, "val_accuracy": 0.5}
            | ({"answers": np.packbits(right[k]).tobytes()} if r == 2 else {})
            for r, k in product((1, 2), range(6))
        ]
        level = {"expected_accuracy": float(right.mean())}
        runs.append(run("fedsdg", seed, rows=rows, quarter=level | {"evaluations": 1}))
    folder = make_record(place, "arena", runs)
    claim = changed(arguments=EXPECTED, minus="gone", threshold={"above": 10})
    (entry,) = judged(place, claim)
    images = answers_by_image(Record(Summary(folder)), Case("iid", "fedsdg", EXPECTED), range(5))
    assert images is not None and images.shape == (5, 37)
    levels = 100 * images.mean(axis=1)
    wide, narrow = crossed_interval(levels, 100 * images), mean_interval(levels)
    assert (entry.low, entry.high) == pytest.approx((wide.low, wide.high), rel=1e-4)
    assert entry.high - entry.low > 1.5 * (narrow.high - narrow.low)


def test_a_value_alone_a_ratio_and_a_count(place):
    alone = changed(id="alone", minus="gone", threshold={"above": 89})
    ratio = changed(id="ratio", minus="gone", over={"method": "fedavg"}, threshold={"above": 1})
    first, second = judged(place, alone, ratio)
    assert (first.effect, first.unit, first.means) == (pytest.approx(90.4), "%", {})
    assert second.unit == "times"
    ratios = np.divide(ACCURACY["fedsdg"], ACCURACY["fedavg"])
    assert second.effect == pytest.approx(ratios.mean(), rel=1e-4)
    make_record(
        place, "arena", [run("fedsdg", s, result={"degenerate_rounds": 0}) for s in range(5)]
    )
    count = {"measure": "degenerate rounds", "arguments": {}, "threshold": {"below": 1}}
    (entry,) = judged(place, changed(minus="gone", **count))
    assert (entry.verdict, entry.horizon) == ("supported", ""), "a count has no horizon"


def test_the_other_side_may_stand_in_another_record(place):
    """The same runs but for the level of accuracy: the difference is that of the levels."""
    other = {"experiment": "later", "cell": "iid@a"}
    claim = changed(method="krum", minus=other, threshold={"between": [19.9, 20.1]})
    assert words(judged(place, claim)[0]) == ("open", "there is no record of later yet")
    runs = [
        run("krum", seed, 1, scenario="a", last={"personal_accuracy": value - 0.2})
        for seed, value in enumerate(ACCURACY["krum"])
    ]
    make_record(place, "later", runs)
    (entry,) = judged(place, claim)
    assert (entry.verdict, entry.effect) == ("supported", pytest.approx(20.0))
    assert entry.compared == "krum − the same (cell iid@a, experiment later)"


def test_what_cannot_be_answered_is_open_with_its_reason(built):
    entries = judged(
        built,
        OPEN,
        changed(id="later", experiment="later", cell="iid@a", method="krum", minus="gone"),
        changed(id="cell", cell="dirichlet~0.1"),
        changed(id="column", arguments={"metric": "expected_accuracy_b"}),
    )
    assert [words(entry) for entry in entries] == [
        ("open", "needs x"),
        ("open", "there is no record of later yet"),
        ("open", "the record has no run of fedsdg at dirichlet~0.1 yet"),
        ("open", "the record has no expected_accuracy_b of fedsdg at iid yet"),
    ]


def test_a_record_of_two_data_sets_is_judged_by_the_one_that_is_named(place):
    """Both have the same seeds, and the second is far worse."""
    config = yaml.safe_load((place / "config" / "config.yaml").read_text())
    text = yaml.safe_dump({**config, "datasets": ["digits", "views"]})
    (place / "config" / "config.yaml").write_text(text)
    last = {"personal_accuracy": 0.12}
    make_record(place, "arena", [run("fedsdg", s, dataset="views", last=last) for s in range(5)])
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
        shutil.rmtree(place / f"runs/arena/digits/clients~10/iid/krum/seed~{seed}")
    make_record(place, "arena", [])
    (entry,) = judged(place, changed(**KRUM))
    assert (*words(entry), entry.n, entry.low) == ("undecided", "too few seeds", 3, None)


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        (
            changed(experiment="arenas"),
            "better names the unknown experiment 'arenas'; .*or correct",
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
        (changed(origin="hypothetis"), "better: .*'hypothetis', but must be .*mean 'hypothesis'"),
        (changed(origin="post hoc"), "better is post hoc, but lacks 'seen_in'"),
        (changed(seen_in="arena"), "better has 'seen_in', but is not post hoc"),
        (
            changed(origin="post hoc", seen_in="arenas"),
            "better.*no experiment and no commit.*'arena",
        ),
        (CELLS | {"cells": "one:iid"}, "small: 'cells' is 'one:iid'; write a list of exp"),
        (CELLS | {"cells": ["one"]}, "small: 'cells' is .*write a list of experiment:cell"),
        (CELLS | {"cells": ["one:iid"] * 2}, "small names the cell 'one:iid' twice"),
        (CELLS | {"cells": ["arena:idd"]}, "small: arena has no cell 'idd'; its cells are iid"),
        (CELLS | {"origin": "specification"}, "small names the unknown experiment 'one'"),
        (CELLS | {"minus": {"method": "krum"}}, "small has an unknown key 'minus'"),
        (CELLS | {"arguments": {**EXPECTED, "others": "some"}}, "small: .*'some', but must be one"),
        (OPEN | {"needs": ""}, "private lacks 'needs'; add it: what it would take"),
        (PROOF | {"verdict": "open"}, "sum: the verdict of a proof is 'open'; write supported"),
    ],
)
def test_a_bad_entry_is_named_with_its_remedy(built, claim, said):
    with pytest.raises(ValueError, match=said) as caught:
        read(built, claim)
    assert "\n" not in str(caught.value)


def test_two_claims_of_one_id_are_refused(built):
    with pytest.raises(ValueError, match="2 claims have the id 'better'; rename"):
        read(built, BETTER, BETTER)


def test_the_page_counts_every_verdict_and_hides_none(place):
    claims = [OPEN, changed(id="lost", threshold={"above": 5}), BETTER, PROOF]
    (place / "claims.yaml").write_text(yaml.safe_dump(claims))
    entries = write_ledger(
        *(place / name for name in ("claims.yaml", "config", "records", "claims.md"))
    )
    assert read_ledger(place / "records" / "ledger.json") == entries
    text = (place / "claims.md").read_text()
    cells = [line.split("|") for line in text.splitlines() if line.startswith("| **")]
    counts = {name.strip(" *"): int(count) for _, name, count, *_ in cells}
    expected = {"refuted": 2, "supported": 1, "undecided": 0, "no verdict": 0, "open": 1}
    assert counts == expected
    # In a table what is refuted comes first, whatever the order of the claims.
    places = [text.index(f'<a id="{name}"></a>') for name in ("sum", "lost", "better", "private")]
    assert places == sorted(places)
    assert "+3.4 points [+2.7, +4.1]<br>(90.4 and 87.0)" in text


def test_records_that_a_claim_compares_share_kernel_and_test_set():
    """Pairs by seed of two records: with other test images they would be no pairs."""
    claims = yaml.safe_load((ROOT / "claims.yaml").read_text())["claims"]
    crossed = [one for one in claims if "experiment" in one.get("minus", {})]
    assert crossed
    for claim in crossed:
        configs = [
            json.loads(text)
            for name in (claim["experiment"], claim["minus"]["experiment"])
            for text in pd.read_parquet(RECORDS / name / "runs.parquet")["config"].dropna()
        ]
        said = {(one["training"].get("kernel"), one["partition"].get("test")) for one in configs}
        assert len(said) == 1, claim["id"]


LATER = changed(id="later", origin="hypothesis", experiment="cross", cell="iid@half")


def test_a_hypothesis_may_be_about_a_run_that_is_still_to_be_made(built):
    post_hoc = changed(id="seen", origin="post hoc", seen_in="arena")
    entry, seen, plain = judged(built, LATER, post_hoc, BETTER)
    assert (seen.verdict, seen.p) == ("no verdict", None)
    assert (seen.effect, seen.low, seen.high) == (plain.effect, plain.low, plain.high)
    assert (entry.verdict, entry.reason, entry.effect) == ("open", "declared, not yet run", None)
    text = page([entry, seen, plain])
    assert "*(Aims; hypothesis)*" in text and "*(Aims; post hoc, seen in arena)*" in text
    assert entry.to_dict()["origin"] == "hypothesis"
    with pytest.raises(ValueError, match="unknown experiment 'cross'"):
        read(built, LATER | {"origin": "specification"})


def test_a_claim_is_frozen_with_its_run(place):
    """Before the run a hypothesis may be changed and frozen anew, afterwards nothing of it."""
    records = place / "records"
    run, post = changed(origin="hypothesis"), changed(id="p", origin="post hoc", seen_in="arena")
    claims = {claim["id"]: claim for claim in (run, post, LATER, OPEN, PROOF)}

    def frozen(**others):
        return freeze(read(place, *(claims | others).values()), records)

    def changes(**others):
        given = [claim for claim in (claims | others).values() if claim]
        return dict(changed_origins(read(place, *given), records))

    assert frozen() == 5
    before = (records / "origins.json").read_bytes()
    assert frozen(better=run | {"note": "Said more plainly.", "section": "Goals"}) == 0
    assert (records / "origins.json").read_bytes() == before
    assert changes() == {}
    for other, sentence in (
        ({"origin": "specification"}, "origin was changed from 'hypothesis' to 'specificat"),
        ({"threshold": {"above": 1}}, "what it claims was changed since"),
        ({"minus": {"method": "krum"}}, "what it claims was changed since"),
        ({"sentence": "FedSDG is best."}, "what it claims was changed since"),
    ):
        found = changes(better=run | other)
        assert list(found) == ["better"] and sentence in found["better"]
        assert "arena has been run" in found["better"]
        with pytest.raises(ValueError, match="claim better"):
            frozen(better=run | other)
    moved = changes(p=post | {"seen_in": "later"})["p"]
    assert "seen in was changed from 'arena' to 'later'" in moved
    assert "was removed" in changes(better=None)["better"]
    to_a_known_run = LATER | {"experiment": "arena", "cell": "iid"}
    assert list(changes(later=to_a_known_run)) == ["later"]
    sharper = LATER | {"threshold": {"above": 2}}
    assert changes(later=sharper) == {}
    assert frozen(later=sharper) == 1
    (records / "cross").mkdir()
    (records / "cross" / "runs.parquet").touch()
    assert list(changes()) == ["later"]
