"""Compensated: the inner rule where nothing is late, and 1/(1 + tau) where something is."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsdg.aggregation.engines.rows import BlockRows
from fedsdg.aggregation.plans import planned, step_of
from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.cgsv import Cgsv
from fedsdg.aggregation.rules.compensated import Compensated
from fedsdg.aggregation.rules.fedcurv import FedCurv
from fedsdg.aggregation.rules.focus import LOSSES, Focus
from fedsdg.aggregation.rules.geometric_median import GeometricMedian
from fedsdg.aggregation.rules.krum import Krum, MultiKrum
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.median import CoordinateMedian
from fedsdg.aggregation.rules.no_aggregation import NoAggregation
from fedsdg.aggregation.rules.scaffold import Scaffold
from fedsdg.aggregation.rules.screened import Screened
from fedsdg.aggregation.rules.trimmed_mean import TrimmedMean

WEIGHING = [
    Mean("samples"),
    Mean("uniform"),
    Alignment(),
    Cgsv(),
    Scaffold(server_rate=0.5),
    Krum(),
    MultiKrum(),
    GeometricMedian(),
]


def drawn(size, d, seed=0):
    return torch.tensor(np.random.default_rng(seed).normal(size=(size, d)) + 0.5)


def outcome(rule, updates, context):
    uploads = dict.fromkeys(rule.reads, updates.flip(0).abs()) | {"update": updates}
    uploads |= {name: uploads[name][:, :1] for name in LOSSES if name in uploads}
    return rule(uploads, context, rule.init(updates.shape[1], context.client_samples))


@pytest.mark.parametrize("inner", [*WEIGHING, FedCurv(), Focus(), NoAggregation()], ids=repr)
@pytest.mark.parametrize("ages", [None, np.zeros(7, dtype=np.int64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_late_is_the_inner_rule_bit_for_bit(cohort, inner, ages, dtype):
    updates, context = drawn(7, 40).to(dtype), replace(cohort(7), ages=ages)
    expected, found = (outcome(rule, updates, context) for rule in (inner, Compensated(inner)))
    assert torch.equal(found.steps, expected.steps)
    if expected.weights is None:
        assert found.weights is None
    else:
        assert found.weights.tobytes() == expected.weights.tobytes()
    for name, value in expected.state.items():
        assert torch.equal(found.state[name], value)
    for name, value in expected.diagnostics.items():
        np.testing.assert_array_equal(found.diagnostics[name], value)


def test_three_clients_by_hand(cohort):
    """n = (1, 1, 2), tau = (0, 1, 3): weights in proportion to 1, 1/2, 2/4."""
    context = replace(cohort(3, samples=np.array([1, 1, 2])), ages=np.array([0, 1, 3]))
    found = outcome(Compensated(Mean("samples")), torch.eye(3), context)
    np.testing.assert_allclose(found.weights, [0.5, 0.25, 0.25])
    np.testing.assert_allclose(found.steps[0], [0.5, 0.25, 0.25])


@pytest.mark.parametrize("inner", WEIGHING, ids=repr)
@settings(max_examples=20, deadline=None)
@given(ages=st.lists(st.integers(0, 9), min_size=7, max_size=7))
def test_weights_are_lessened_and_sum_to_one(cohort, inner, ages):
    updates, ages = drawn(7, 12), np.array(ages)
    on_time = outcome(inner, updates, cohort(7))
    found = outcome(Compensated(inner), updates, replace(cohort(7), ages=ages))
    expected = on_time.weights / (1 + ages)
    np.testing.assert_allclose(found.weights, expected / expected.sum(), rtol=1e-12)
    assert found.weights.sum() == pytest.approx(1, abs=1e-12)
    if not isinstance(inner, Cgsv | Scaffold):
        np.testing.assert_allclose(found.steps[0], found.weights @ updates.numpy(), rtol=1e-9)
    for name, value in on_time.state.items():
        assert torch.equal(found.state[name], value)


def test_a_rule_that_scales_updates_still_does(cohort):
    """CGSV: the step is the mean length times sum w'_k u_k. SCAFFOLD: rate times the mean."""
    updates, ages = drawn(5, 9), np.array([0, 2, 0, 1, 5])
    context = replace(cohort(5), ages=ages)
    norms = updates.norm(dim=1)
    found = outcome(Compensated(Cgsv()), updates, context)
    units = (updates / norms[:, None]).numpy()
    np.testing.assert_allclose(found.steps[0], float(norms.mean()) * found.weights @ units)
    found = outcome(Compensated(Scaffold(server_rate=0.5)), updates, context)
    np.testing.assert_allclose(found.steps[0], 0.5 * found.weights @ updates.numpy())


@pytest.mark.parametrize("inner", WEIGHING, ids=repr)
def test_all_late_alike_is_as_if_none_were(cohort, inner):
    updates = drawn(7, 12)
    late = outcome(Compensated(inner), updates, replace(cohort(7), ages=np.full(7, 4)))
    torch.testing.assert_close(late.steps, outcome(inner, updates, cohort(7)).steps)


def test_it_plans_from_blocks_of_columns_as_its_inner_rule_does(cohort):
    updates, context = drawn(6, 50), replace(cohort(6), ages=np.array([0, 1, 0, 2, 0, 0]))
    rule = Compensated(Scaffold())
    expected = outcome(rule, updates, context)
    uploads = {"update": updates, "control": updates.flip(0)}

    def in_blocks(x):
        def blocks():
            for start in range(0, 50, 9):
                yield slice(start, min(start + 9, 50)), x[:, start : start + 9]

        return BlockRows(blocks, (6, 50), x.dtype)

    rows = {name: in_blocks(x) for name, x in uploads.items()}
    plan = planned(rule, rows, context, rule.init(50, context.client_samples))
    torch.testing.assert_close(step_of(plan, rows["update"], context), expected.steps[0])


@pytest.mark.parametrize("inner", [CoordinateMedian(), TrimmedMean(), Compensated])
def test_a_rule_without_weights_cannot_be_compensated(inner):
    with pytest.raises(ValueError, match=r"no weights to lessen; use a|is no PlannedRule"):
        Compensated(inner)


def test_what_a_trial_does_not_show_is_an_error_when_an_update_is_late(cohort):
    """A trimmed mean of 81 clients at least: the trial of 64 says nothing of it."""
    rule, updates = Compensated(TrimmedMean(f=40)), drawn(81, 2)
    assert outcome(rule, updates, cohort(81)).weights is None
    late = replace(cohort(81), ages=np.arange(81) % 2)
    with pytest.raises(ValueError, match=r"with TrimmedMean\(f=40\), which has no weights"):
        outcome(rule, updates, late)


def test_where_nothing_is_aggregated_nothing_is_lessened(cohort):
    """Local-only training in a federation with late clients: the floor of a table."""
    late = replace(cohort(5), ages=np.arange(5))
    found = outcome(Compensated(NoAggregation()), drawn(5, 4), late)
    assert torch.equal(found.steps, torch.zeros(1, 4))
    assert found.weights is None


def test_only_planned_rules_are_taken():
    for inner in (Screened(Mean()), "fedavg"):
        with pytest.raises(ValueError, match="is no PlannedRule; give one such as Mean"):
            Compensated(inner)
