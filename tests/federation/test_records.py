"""What is written down is what it says: drift, norms, the chosen round, the worst decile."""

import numpy as np
import pytest
import torch

from fedsdg.aggregation.types import Aggregate
from fedsdg.federation.bank import ClientBank
from fedsdg.federation.cohorts import Shards
from fedsdg.federation.evaluation import ClientAccuracies, summary
from fedsdg.federation.local_training import LocalResult
from fedsdg.federation.records import Scribe, last_and_selected


def test_drift_and_norms_equal_brute_force(setting):
    s = setting(branch="dual")
    update = torch.randn(4, s.layout.d, dtype=torch.float64) + 3.0
    private = torch.randn(4, s.layout.d_private, dtype=torch.float64)
    ones = np.ones(4)
    local = LocalResult(s.theta + update, private, {}, {}, ones, ones.astype(int), ones.astype(int))
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
    found = summary(ClientAccuracies(val=1 - test, test=test), sizes)
    assert found["personal_worst_decile"] == pytest.approx((1 + 2 + 3) / 3 / 25)  # ⌈25/10⌉ = 3
    assert found["personal_accuracy"] == pytest.approx(13 / 25)
    assert found["personal_std"] == pytest.approx(np.sqrt(((test - test.mean()) ** 2).mean()))
    assert found["personal_accuracy_weighted"] == pytest.approx((test * sizes).sum() / sizes.sum())
    assert found["val_accuracy"] == pytest.approx(1 - 13 / 25)
