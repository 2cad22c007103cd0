"""Measures of the ledger on records written row by row, where the answer is known."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedsdg.analysis.measures import MEASURES, Case, LackingError, Record, answers_by_image
from fedsdg.analysis.summary import Summary
from fedsdg.files import write_json

from .conftest import Run

CELL = "iid@half"
SETTING = {
    "federation": {"clients": 4, "clients_per_round": 2, "rounds": 8},
    "training": {"epochs": 2},
    "backbone": "small",
}
#: Client → gates in the last quarter of the rounds; 0 and 1 agree, 2 and 3 conflict.
GATES = {
    0: [0.05, 0.05, 0.05, 0.5],
    1: [0.05, 0.95, 0.5, 0.5],
    2: [0.95, 0.95, 0.95, 0.95],
    3: [0.0, 0.4, 0.6, 1.0],
}


def run(seed=0, method="fedsdg", **more):
    rounds = [
        {
            "round": number,
            "gate_penalty": 3.0 - 0.25 * number,
            "private_penalty": [0.01, 0.09, 0.02][number % 3],
            "weight_entropy": math.log(2) if number % 2 else 0.0,
            "global_accuracy": 0.5 + 0.01 * (number % 2) * (number > 4),
            "simulated_seconds": 3.0 * number,
        }
        for number in range(1, 9)
    ]
    rows = []
    for number in range(1, 9):
        cohort = {2 * (number % 2), 2 * (number % 2) + 1}  # clients 0 and 1, then 2 and 3
        for client in range(4):
            took_part = client in cohort
            late = number > 6  # the last quarter; what stood before is another matter
            row = {
                "round": number,
                "client": client,
                "participated": took_part,
                "conflicts": client > 1,
                "gates": GATES[client] if late else [0.5] * 4,
                "private_shares": [0.1 * client, 0.2 * client],
                "private_ratio": 0.1 * client,
                "val_accuracy": 0.5,
                "noise_rate": 0.1 * client,
                "shapley": [0.4, 0.1, 0.2, 0.3][client],
            }
            if took_part:
                row |= {"weight": 0.75 if client % 2 else 0.25, "local_steps": 10 + client}
            rows.append(row)
    last = {"personal_accuracy": 0.9 + 0.01 * seed, "global_accuracy": 0.8}
    facts = {"scenario": "half", "skew": "iid", "clients": 4, "config": SETTING}
    return Run(method, seed, last=last, rounds=rounds, rows=rows, **facts, **more)


def test_two_data_sets_do_not_overwrite_each_other_by_seed(summary_of):
    """Seeds are those of every data set: with no name the measure says which there are."""
    runs = [run(seed, dataset=name) for name in ("digits", "views") for seed in (0, 1)]
    for one in runs[2:]:
        one.last = {"personal_accuracy": 0.1, "global_accuracy": 0.2}
        one.rounds = [row | {"simulated_seconds": 1.0} for row in one.rounds]
    record = Record(Summary(summary_of(runs)))
    found = {
        (name, dataset): MEASURES[name].function(record, Case(CELL, "fedsdg", options, dataset))
        for name, options in (("accuracy", {"metric": "personal_accuracy"}), ("simulated time", {}))
        for dataset in ("digits", "views")
    }
    assert found == {
        ("accuracy", "digits"): pytest.approx({0: 90.0, 1: 91.0}),
        ("accuracy", "views"): pytest.approx({0: 10.0, 1: 10.0}),
        ("simulated time", "digits"): {0: 24.0, 1: 24.0},
        ("simulated time", "views"): {0: 1.0, 1: 1.0},
    }
    for name in MEASURES:
        options = {"metric": "personal_accuracy", "of": "gate", "against": "noise_rate"}
        with pytest.raises(LackingError, match="has runs on digits, views: name one with 'data"):
            MEASURES[name].function(record, Case(CELL, "fedsdg", options))


@pytest.fixture
def record(summary_of):
    return Record(Summary(summary_of([run(0), run(1)])))


MEANS = [np.mean(GATES[client]) for client in range(4)]


def test_measures_by_hand(record):
    """Shares and means are taken within clients first; correlations are over clients."""

    def measured(name, **options):
        values = MEASURES[name].function(record, Case(CELL, "fedsdg", options))
        assert set(values) == {0, 1}
        return values[0]

    for name, options, expected in (
        ("gate share", {"below": 0.1}, 100 * np.mean([3 / 4, 1 / 4, 0, 1 / 4])),
        ("gate share", {"above": 0.9}, 100 * np.mean([0, 1 / 4, 1, 1 / 4])),
        ("gate share", {"above": 0.3, "below": 0.7}, 100 * np.mean([1 / 4, 2 / 4, 0, 2 / 4])),
        ("gate share", {"below": 0.1, "clients": "agree"}, 100 * np.mean([3 / 4, 1 / 4])),
        ("gate share", {"above": 0.9, "clients": "conflict"}, 100 * np.mean([1, 1 / 4])),
        ("gate", {}, np.mean(MEANS)),
        ("gate", {"clients": "conflict"}, np.mean(MEANS[2:])),
        ("gate extremes", {}, 100 * np.mean([3 / 4, 2 / 4, 1, 2 / 4])),
        ("spread over blocks", {"of": "gates", "clients": "conflict"}, np.mean([0.0, 1.0])),
        ("spread over blocks", {"of": "private_shares"}, np.mean([0.0, 0.1, 0.2, 0.3])),
        ("penalty", {"of": "gate", "at": "first"}, 2.75),
        ("penalty", {"of": "gate"}, np.mean([1.25, 1.0])),
        ("penalty", {"of": "private", "at": "largest"}, 0.09),
        ("private ratio", {}, 0.15),
        ("private ratio", {"clients": "conflict"}, 0.25),
        ("private share", {"clients": "agree"}, 0.075),
        # Clients 2 and 3 share a round of their own: 0.25 · 2 and 0.75 · 2.
        ("relative weight", {}, 1.0),
        ("relative weight", {"clients": "conflict"}, 1.0),
        # Half of the rounds have equal weights, half give one client all: (2 + 1) / 2 of 2.
        ("effective clients", {}, 75.0),
        # Mean gates rank 0 < 1 = 3 < 2; steps rise with the client.
        ("gates and steps", {}, np.corrcoef([1, 2.5, 4, 2.5], [1, 2, 3, 4])[0, 1]),
        # Weights alternate 0.5, 1.5, 0.5, 1.5 in units of an equal share.
        ("credit", {"of": "weight", "against": "noise_rate"},
         np.corrcoef([1.5, 3.5, 1.5, 3.5], [1, 2, 3, 4])[0, 1]),
        ("accuracy", {"metric": "personal_accuracy"}, 90.0),
        ("simulated time", {}, 24.0),
        # Rounds 5 to 8 alternate by a point; those before do not count.
        ("swing", {}, 1.0),
    ):  # fmt: skip
        assert measured(name, **options) == pytest.approx(expected), (name, options)


def test_a_group_that_weighs_more_shows(summary_of):
    one = run(0)
    for row in one.rows:
        if row["participated"]:  # one cohort of all four
            row["round"] = 1 + (row["round"] - 1) // 2 * 2
            row["weight"] = [0.1, 0.1, 0.4, 0.4][row["client"]]
    record = Record(Summary(summary_of([one])))
    for group, expected in (("agree", 0.4), ("conflict", 1.6)):
        value = MEASURES["relative weight"].function(
            record, Case(CELL, "fedsdg", {"clients": group})
        )
        assert value[0] == pytest.approx(expected)


def test_what_is_sent(record):
    for one in record.summary.runs:
        # What summarising kept of a run that sent 2 · 2 clients · 100 scalars · 8.
        one |= {"bytes_up": 6400, "bytes_down": 6400, "private_parameters": 96}
    plan = {"depth": 2, "mlp_ratio": 4.0, "dim": 5}
    write_json(record.summary.folder / "backbones" / "small.json", {"architecture": plan})
    # 2 blocks · (4 + 8) · 25 weights = 600; 100 parameters are sent.
    sent = {"scalars": 1.0, "bytes": 0.0128, "private size": 0.96, "share of the model": 100 / 6}
    for name, expected in sent.items():
        values = MEASURES[name].function(record, Case(CELL, "fedsdg", {}))
        assert values == pytest.approx({0: expected, 1: expected}), name


@pytest.mark.parametrize(
    ("name", "options", "cell", "method", "said"),
    [
        ("accuracy", {"metric": "expected_accuracy"}, CELL, "fedsdg", "no expected_accuracy"),
        ("accuracy", {"metric": "personal_accuracy"}, CELL, "krum", "no run of krum"),
        ("accuracy", {"metric": "personal_accuracy"}, "iid", "fedsdg", "no run of fedsdg at iid"),
        ("credit", {"of": "credibility", "against": "noise_rate"}, CELL, "fedsdg", "no credib"),
    ],
)
def test_what_a_record_cannot_answer_is_said(record, name, options, cell, method, said):
    with pytest.raises(LackingError, match=said):
        MEASURES[name].function(record, Case(cell, method, options))


def test_a_record_without_groups_cannot_tell_them_apart(summary_of):
    one = run(0)
    for row in one.rows:
        del row["conflicts"]
    record = Record(Summary(summary_of([one])))
    with pytest.raises(LackingError, match="no conflicts of fedsdg"):
        MEASURES["gate"].function(record, Case(CELL, "fedsdg", {"clients": "agree"}))


def test_answers_are_shared_among_the_clients_of_a_group(summary_of):
    """Ten images; clients that agree err on the fourth, the others on all but the last."""
    agree, differ = np.arange(10) != 3, np.arange(10) == 9
    made = [run(0), run(1)]
    made += [replace(one, skew="dirichlet~0.1") for one in made]
    for one in made:
        for row in one.rows:
            if row["round"] == 8:
                right = differ if row["client"] > 1 else agree
                row["answers"] = np.packbits(right).tobytes()
    record = Record(Summary(summary_of(made)))

    def shares(metric, cell=CELL):
        return answers_by_image(record, Case(cell, "fedsdg", {"metric": metric}), [0, 1])

    for metric, expected in (
        ("expected_accuracy_a", agree),
        ("expected_accuracy_b", differ),
        ("expected_accuracy", (agree + 1.0 * differ) / 2),
    ):
        np.testing.assert_array_equal(shares(metric), [expected, expected])
    assert shares("personal_accuracy") is None, "it has other images for each client"
    assert shares("expected_accuracy", "dirichlet~0.1@half") is None, "not every image counts"
