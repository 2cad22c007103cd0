"""The table of run-time checks: expected values follow the model, verdicts the numbers."""

import numpy as np

from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables.verification import verification

from .conftest import Run


def run(seed, gates, penalty, gate_init=0.0, method="fedsdg"):
    rng = np.random.default_rng(seed)
    rounds, rows = [], []
    for number in range(1, 9):
        gate_penalty = 3.0 - 2.0 * number / 8 + rng.normal(0, 0.01)
        penalties = {"gate_penalty": gate_penalty}
        penalties["private_penalty"] = penalty + rng.normal(0, 0.001)
        rounds.append({"round": number} | penalties)
        rows += [
            {"round": number, "client": client, "participated": True, "local_steps": 3}
            | {"val_accuracy": 0.5}
            | {"gates": np.clip(np.asarray(gates) + rng.normal(0, 0.01, 6), 0, 1).tolist()}
            for client in range(4)
        ]
    config = {
        "federation": {"clients": 4, "clients_per_round": 4, "rounds": 8},
        "training": {"epochs": 2},
        "parameters": {"gate_init": gate_init},
    }
    return Run(method, seed, rounds=rounds, rows=rows, config=config, clients=4, skew="iid")


def test_data_sets_with_the_same_seeds_have_blocks_of_their_own(summary_of):
    runs = [run(seed, [0.02] * 6, 0.4) for seed in range(5)]
    others = [run(seed, [0.95] * 6, 0.4) for seed in range(5)]
    for other in others:
        other.dataset = "views"
    table = verification(Summary(summary_of([*runs, *others])))
    rows = {
        row["dataset"]: row["mean"]
        for row in table.raw.to_dict("records")
        if row["check"] == "Gates above 0.9 (%)" and row["clients"] == "all"
    }
    assert rows["digits"] == 0
    assert rows["views"] > 95
    assert len({block.title for block in table.blocks}) == 2


def found(table):
    return {row["check"]: row for row in table.raw.to_dict("records")}


def test_each_check_has_its_verdict(summary_of):
    gates = [0.02, 0.03, 0.02, 0.04, 0.5, 0.97]  # 4 of 6 below 0.1, one above 0.9, one at half
    table = verification(Summary(summary_of([run(seed, gates, 0.4) for seed in range(5)])))
    rows = found(table)
    assert rows["Gates below 0.1 (%)"]["verdict"] == "as expected"
    assert rows["Gates below 0.1 (%)"]["mean"] > 60
    assert rows["Gates above 0.9 (%)"]["verdict"] == "as expected"
    assert rows["‖θ_p‖² at its largest"]["verdict"] == "contradicted"
    assert rows["Σ of the gates, last quarter minus first round"]["verdict"] == "as expected"
    assert rows["Σ of the gates, last quarter minus first round"]["mean"] < -1
    assert rows["Σ of the gates after the first round"]["expected"] == "3.00 ± 10 %"
    # Steps are the same for all clients: there is no correlation, and no line.
    assert "ρ over clients between mean gate and local steps" not in rows
    assert [len(block.rows) for block in table.blocks] == [len(rows)]


def test_a_start_of_its_own_is_expected_of_gates_that_had_it(summary_of):
    table = verification(Summary(summary_of([run(0, [0.1] * 6, 0.01, gate_init=-2.0)])))
    assert found(table)["Σ of the gates after the first round"]["expected"] == "0.72 ± 10 %"
    assert set(table.raw["verdict"]) == {"undecided"}
    assert "Fewer than 5 seeds" in table.notes[0]


def test_an_experiment_without_gates_says_so(summary_of):
    table = verification(Summary(summary_of([Run("fedavg", rounds=[{"round": 1}])])))
    assert table.notes == ("No row of this experiment has learned gates.",)
