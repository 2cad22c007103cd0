"""What is written down is what it says: drift, norms, the chosen round, the worst decile."""

import numpy as np
import pytest
import torch

from fedsdg.aggregation.types import Aggregate
from fedsdg.federation.bank import ClientBank
from fedsdg.federation.clients import LocalResult
from fedsdg.federation.cohorts import Shards
from fedsdg.federation.environment.timing import Updates
from fedsdg.federation.evaluation import ClientAccuracies, summary
from fedsdg.federation.records import (
    Scribe,
    gate_facts,
    last_and_selected,
    last_quarter,
    local_steps,
)
from fedsdg.federation.step_rows import PrivateColumns
from tests.pretended_cuda import pretended_cuda


def test_drift_and_norms_equal_brute_force(setting):
    s = setting(branch="dual")
    update = torch.randn(4, s.layout.d, dtype=torch.float64) + 3.0
    private = torch.randn(4, s.layout.d_private, dtype=torch.float64)
    ones = np.ones(4)
    local = LocalResult(
        s.theta + update,
        private,
        {},
        {},
        ones,
        *[ones.astype(int)] * 2,
        *[ones.astype(int) * 0] * 2,
    )
    empty = [np.arange(1)] * 4
    bank = ClientBank(4, s.private, [], s.layout.d)
    scribe = Scribe(3, s.layout, Shards(empty, empty, empty, np.arange(1)), bank)
    weights = np.array([0.5, 0.5, 0.0, 0.0])
    record = scribe.round_record(local, update, Aggregate(update[:1], weights, {}, {}))
    theta = local.theta
    apart = [(row - theta.mean(0)).square().sum() for row in theta]
    assert record["drift"] == pytest.approx(float(sum(apart) / 4) ** 0.5, rel=1e-9)
    norms = [float(row.norm()) for row in update]
    assert record["update_norm_mean"] == pytest.approx(sum(norms) / 4, rel=1e-12)
    assert record["update_norm_max"] == pytest.approx(max(norms), rel=1e-12)
    assert (record["weight_zeros"], record["weight_max"]) == (2, 0.5)
    assert record["weight_entropy"] == pytest.approx(np.log(2))


def test_the_selected_round_is_the_first_with_the_best_validation_accuracy():
    rows = [
        {"round": 1, "evaluated": False},
        {"round": 2, "evaluated": True, "val_accuracy": 0.7, "personal_accuracy": 0.1},
        {"round": 4, "evaluated": True, "val_accuracy": 0.9, "personal_accuracy": 0.2},
        {"round": 6, "evaluated": True, "val_accuracy": 0.9, "personal_accuracy": 0.9},
        {"round": 8, "evaluated": True, "val_accuracy": 0.8, "personal_accuracy": 1.0},
    ]
    last, selected = last_and_selected(rows)
    assert last["round"] == 8
    assert (selected["round"], selected["personal_accuracy"]) == (4, 0.2)


def test_metrics_over_clients():
    test = np.arange(1, 26) / 25
    sizes = np.arange(25, 0, -1)
    everybody = np.ones(25, dtype=bool)
    found = summary(ClientAccuracies(val=1 - test, test=test), sizes, everybody, everybody)
    assert found["personal_worst_decile"] == pytest.approx((1 + 2 + 3) / 3 / 25)  # ⌈25/10⌉ = 3
    assert found["personal_accuracy"] == pytest.approx(13 / 25)
    assert found["personal_std"] == pytest.approx(np.sqrt(((test - test.mean()) ** 2).mean()))
    assert found["personal_accuracy_weighted"] == pytest.approx((test * sizes).sum() / sizes.sum())
    assert found["val_accuracy"] == pytest.approx(1 - 13 / 25)
    assert not any(name.startswith("expected") for name in found)


def test_the_worst_decile_counts_who_was_drawn_and_means_count_who_is_judged():
    test = np.array([0.1, 0.2, 0.3, 0.4, 0.9, 0.0])
    seen = np.array([0.5, 0.4, 0.3, 0.2, 0.7, 0.1])
    judged = np.array([1, 1, 1, 1, 1, 0], dtype=bool)
    drawn = np.array([0, 0, 1, 1, 1, 1], dtype=bool)
    groups = {"a": np.array([1, 1, 0, 0, 0, 0], dtype=bool), "new": ~judged, "b": judged & ~judged}
    accuracies = ClientAccuracies(val=test, test=test, expected=seen)
    found = summary(accuracies, np.ones(6), judged, drawn, groups)
    assert found["personal_accuracy"] == pytest.approx((0.1 + 0.2 + 0.3 + 0.4 + 0.9) / 5)
    assert found["personal_worst_decile"] == pytest.approx(0.3)
    assert found["expected_accuracy"] == pytest.approx((0.5 + 0.4 + 0.3 + 0.2 + 0.7) / 5)
    assert found["expected_std"] == pytest.approx(np.std([0.5, 0.4, 0.3, 0.2, 0.7]))
    assert found["expected_worst_decile"] == pytest.approx(0.2)
    assert found["expected_accuracy_a"] == pytest.approx(0.45)
    assert found["expected_accuracy_new"] == pytest.approx(0.1)
    assert "expected_accuracy_b" not in found
    nobody = summary(accuracies, np.ones(6), judged, np.zeros(6, dtype=bool))
    assert "personal_worst_decile" not in nobody and "expected_worst_decile" not in nobody


def test_the_last_quarter_is_what_comes_after_three_quarters_of_the_rounds():
    rows = [
        {"round": n, "evaluated": n % 3 == 0 or n == 16, "expected_accuracy": n / 100}
        for n in range(1, 17)
    ]
    rows[14]["val_accuracy"] = 0.25
    quarter = last_quarter(rows)
    # 3 · 16 / 4 = 12 itself is not in it: rounds 15 and 16 are.
    assert (quarter["evaluations"], quarter["round"]) == (2, 16)
    assert quarter["expected_accuracy"] == pytest.approx((0.15 + 0.16) / 2)
    assert quarter["val_accuracy"] == 0.25 and quarter["global_accuracy"] is None
    assert "expected_accuracy_a" not in quarter
    alone = last_quarter([{"round": 1, "evaluated": True, "expected_accuracy_a": 0.5}])
    assert alone["evaluations"] == 1 and alone["expected_accuracy_a"] == 0.5


def test_local_steps_add_up_over_the_rows_of_a_client():
    rows = [{"client": 2, "local_steps": 3}, {"client": 0}, {"client": 2, "local_steps": 4}]
    assert local_steps(rows, 4).tolist() == [0, 0, 7, 0]


def test_the_gates_of_all_clients_are_fetched_in_one_copy(setting):
    """As many waits for six clients as for two; client 5 has never trained and has none."""
    s = setting(branch="dual")
    private = torch.randn(6, s.layout.d_private, dtype=torch.float64)
    gates = PrivateColumns.of(s.layout, torch.device("cpu")).gates
    waits = []
    for n in (2, 6):
        clients, ones = np.arange(n), np.ones(n, dtype=np.int64)
        with pretended_cuda() as machine:
            bank = ClientBank(6, s.private.cuda(), [], s.layout.d)
            bank.scatter(torch.arange(5), private[:5].cuda(), {})
            empty = [np.arange(1)] * 6
            scribe = Scribe(1, s.layout, Shards(empty, empty, empty, np.arange(1)), bank)
            update = torch.zeros(n, s.layout.d).cuda()
            local = LocalResult(update, update, {}, {}, ones / 2, ones, ones, ones * 0, ones * 0)
            arrived = Updates(clients, ones, ones / 2, ones / 2, {"update": update})
            before = machine.waits.total()
            rows = scribe.participants(clients, local, arrived, Aggregate(update, None, {}, {}))
            waits.append(machine.waits.total() - before)
        for k in range(n):
            expected = torch.sigmoid(private[k, gates]).tolist() if k < 5 else None
            assert rows[k].get("gates") == expected
    assert waits[0] == waits[1] > 0


def test_gates_are_summed_up_over_who_agrees_and_who_differs_in_the_last_evaluation():
    def row(client, round_, steps, gates, **more):
        judged = {"val_accuracy": 0.5, "steps": steps, "gates": gates}
        return {"client": client, "round": round_, **judged, **more}

    rows = [
        row(0, 4, 90, [0.9, 0.9], conflicts=False),
        row(0, 8, 100, [0.1, 0.3], conflicts=False),
        row(1, 8, 300, [0.4, 0.4], conflicts=False),
        row(2, 8, 200, [0.6, 0.8], conflicts=True),
        row(3, 8, 400, None, conflicts=True),  # never drawn, so without gates
        row(4, 8, 0, None, conflicts=False, held_out=True),
        {"client": 5, "round": 8, "gates": [1.0, 1.0], "attacker": True},
    ]
    found = gate_facts(rows, 0.02)
    expected = {"gate_travel": 0.02 * 250, "gates_a": 0.3, "gates_b": 0.7}
    assert found == pytest.approx(expected)
    alike = [{k: v for k, v in one.items() if k != "conflicts"} for one in rows]
    assert gate_facts(alike, 0.02) == pytest.approx({"gate_travel": 5, "gates_a": 1.3 / 3})
    assert gate_facts([{**one, "gates": None} for one in rows], 0.02) == {}
    assert gate_facts([], 0.02) == {}
