"""By what clients count: rules that weigh them take samples, steps per epoch, or count heads."""

import numpy as np
import pytest
import torch

from fedsdg.aggregation.rules.clusters import Clustered
from fedsdg.aggregation.rules.fedcurv import FedCurv
from fedsdg.aggregation.rules.focus import Focus
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.types import Context
from fedsdg.aggregation.weights import Weighed
from fedsdg.parts import declared

SAMPLES, BATCHES = np.array([30, 5, 17, 1]), np.array([8, 2, 5, 1])
COUNTS = {"samples": SAMPLES, "uniform": np.ones(4), "batches": BATCHES}
SHAPE = (4, 3)


def context(**changed):
    facts = {"num_samples": SAMPLES, "num_batches": BATCHES, "models": torch.zeros(3, 3).double()}
    return Context(
        round=1, clients=np.arange(4), num_clients=4, total_samples=53, client_samples=SAMPLES,
        **{**facts, **changed},
    )  # fmt: skip


def uploads():
    generator = torch.Generator().manual_seed(0)
    update = torch.randn(SHAPE, generator=generator, dtype=torch.float64)
    flat = {name: torch.zeros(4, 1).double() for name in ("benchmark_loss", "global_loss")}
    sums = {name: torch.zeros(SHAPE).double() for name in ("fisher", "fisher_theta")}
    return {"update": update, **flat, **sums, "scores": torch.zeros(4, 3).double()}


@pytest.mark.parametrize("weights", COUNTS)
@pytest.mark.parametrize("rule", [Mean, FedCurv, Focus, Clustered])
def test_the_step_is_the_mean_by_these_counts(rule, weights):
    """With equal losses FOCUS finds all equally credible; one cluster of three holds everybody."""
    rule, given = rule(weights=weights), uploads()
    state = {name: v.double() for name, v in rule.init(3, SAMPLES).items() if v.is_floating_point()}
    state = {**rule.init(3, SAMPLES), **state}
    if "assignment" in state:
        state["assignment"] = torch.zeros_like(state["assignment"])
    aggregate = rule(given, context(), state)
    counts = COUNTS[weights]
    expected = sum(c * row for c, row in zip(counts, given["update"], strict=True)) / counts.sum()
    assert torch.allclose(aggregate.steps[0], expected, rtol=1e-12)
    np.testing.assert_allclose(aggregate.weights, counts / counts.sum(), rtol=1e-12)


@pytest.mark.parametrize("rule", [Mean, FedCurv, Focus, Clustered])
def test_other_counts_are_refused(rule):
    with pytest.raises(ValueError, match="^weights is 'epochs', but must be one of samples, unif"):
        rule(weights="epochs")


@pytest.mark.parametrize("rule", [Mean, FedCurv, Focus])
def test_doors_ask_for_what_is_needed_alone(rule):
    needs = [rule(weights=weights).needs for weights in COUNTS]
    assert needs == ["num_samples", None, "num_batches"]


@pytest.mark.parametrize("rule", [Mean, FedCurv, Focus, Clustered])
def test_what_clients_count_by_is_declared_once(rule):
    assert "weights" not in vars(rule).get("__annotations__", {})
    assert declared(rule)["weights"] == declared(Weighed)["weights"]
    assert rule() == rule(weights="samples") != rule(weights="uniform")


@pytest.mark.parametrize("weights", COUNTS)
def test_no_door_asks_for_the_counts_of_clusters(weights):
    """None serves several models, and attackers take all members of clusters for alike."""
    assert Clustered(weights=weights).needs is None
