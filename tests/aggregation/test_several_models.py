"""Properties that hold for every rule that serves several models."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsdg.aggregation.rules.cgsv_xu import CgsvXu
from fedsdg.aggregation.rules.clusters import Clustered
from fedsdg.aggregation.rules.neighbours import Pens
from fedsdg.aggregation.types import Rule

K, D = 8, 40
RULES = [
    CgsvXu(),
    CgsvXu(beta=1e7),
    Clustered(),
    Clustered(beta=0.5),
    Clustered(clusters=2, assignment="known", beta=1.0),
    Pens(),
    Pens(phase_one=2, top=1),
]
SAMPLED = [rule for rule in RULES if not isinstance(rule, CgsvXu)]


def each(rules):
    return pytest.mark.parametrize("rule", rules, ids=repr)


def started(rule):
    state = rule.init(D, 10 + 7 * np.arange(K))
    return rule.with_clusters(state, np.arange(K) % 2) if _is_known(rule) else state


def _is_known(rule):
    return getattr(rule, "assignment", None) == "known"


def round_of(rule, cohort, seed, dtype=torch.float64, clients=None):
    """Uploads and context of one round; the same for a client in whatever order they come."""
    generator = np.random.default_rng(seed)
    count = rule.models(K)
    models = torch.tensor(generator.normal(size=(count, D)))
    size = K if isinstance(rule, CgsvXu) else 5
    drawn = generator.choice(K, size, replace=False)
    updates, scores = generator.normal(size=(K, D)) + 0.5, generator.uniform(size=(K, count))
    scores[generator.uniform(size=scores.shape) < 0.3] = np.nan
    clients = drawn if clients is None else clients(drawn)
    uploads = {
        "update": torch.tensor(updates[clients]).to(dtype),
        "scores": torch.tensor(scores[clients]),
    }
    return uploads, replace(cohort(clients=clients, federation=K), models=models.to(dtype))


def after(rule, cohort, rounds):
    state = started(rule)
    for seed in range(100, 100 + rounds):
        uploads, context = round_of(rule, cohort, seed)
        state = rule(uploads, context, state).state
    return state


@each(RULES)
def test_protocol(rule):
    assert isinstance(rule, Rule)
    assert dataclasses.is_dataclass(rule)
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.anything = 1


@each(RULES)
@pytest.mark.parametrize("rounds", [0, 1, 4])
def test_rows_of_mixing_sum_to_one_and_fit_the_models(rule, cohort, rounds):
    state, clients = after(rule, cohort, rounds), np.array([6, 0, 3])
    rows = rule.mixing(state, clients)
    assert rows.shape == (3, rule.models(K))
    assert rows.dtype == np.float64
    assert (rows >= 0).all()
    np.testing.assert_allclose(rows.sum(axis=1), 1, rtol=1e-12)
    everyone = rule.mixing(state, np.arange(K))
    assert np.array_equal(rows, everyone[clients])


@each(RULES)
@pytest.mark.parametrize("rounds", [0, 1, 4])
@pytest.mark.parametrize("seed", range(5))
def test_permutation_equivariance(rule, cohort, rounds, seed):
    """Clients in another order: the same steps and state, and everything per client reordered."""
    state = after(rule, cohort, rounds)
    order = np.random.default_rng(seed).permutation(K if isinstance(rule, CgsvXu) else 5)
    one = rule(*round_of(rule, cohort, seed), state)
    two = rule(*round_of(rule, cohort, seed, clients=lambda drawn: drawn[order]), state)
    torch.testing.assert_close(two.steps, one.steps)
    if one.weights is not None:
        np.testing.assert_allclose(two.weights, one.weights[order])
    for name, value in one.state.items():
        torch.testing.assert_close(two.state[name], value, rtol=1e-12, atol=1e-12)
    for name, value in one.diagnostics.items():
        np.testing.assert_allclose(two.diagnostics[name], value[order], atol=1e-12, err_msg=name)


@each(RULES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_every_dtype_agrees_with_float64_and_is_kept(rule, dtype, cohort):
    uploads, context = round_of(rule, cohort, 0, dtype)
    state = after(rule, cohort, 1)
    found = rule(uploads, context, state)
    wide = {name: rows.double() for name, rows in uploads.items()}
    exact = rule(wide, replace(context, models=context.models.double()), state)
    assert found.steps.dtype == dtype
    assert found.steps.shape == (rule.models(K), D)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.steps.double(), exact.steps, rtol=2 * eps, atol=8 * eps)


@each(RULES)
def test_inputs_are_not_modified(rule, cohort):
    uploads, context = round_of(rule, cohort, 1)
    uploads["update"].requires_grad_()
    state = after(rule, cohort, 1)
    boxes = (uploads, state, {"models": context.models})
    before = [{name: value.detach().clone() for name, value in box.items()} for box in boxes]
    aggregate = rule(uploads, context, state)
    aggregate.steps.add_(1.0)
    for value in aggregate.state.values():
        value.add_(1)
    for box, copies in zip(boxes, before, strict=True):
        assert all(torch.equal(box[name], copies[name]) for name in copies if name != "scores")
    assert not aggregate.steps.requires_grad


@each(RULES)
def test_the_state_keeps_its_names_shapes_and_dtypes(rule, cohort):
    """As checkpoints want it: tensors only, the same as before the first round."""
    fresh, later = started(rule), after(rule, cohort, 3)
    assert {name: (v.shape, v.dtype) for name, v in later.items()} == {
        name: (v.shape, v.dtype) for name, v in fresh.items()
    }


@each(SAMPLED)
def test_models_of_which_no_one_took_part_stay(rule, cohort):
    state = after(rule, cohort, 4)
    uploads, context = round_of(rule, cohort, 2)
    aggregate = rule(uploads, context, state)
    mine = rule.mixing(state, context.clients)
    if isinstance(rule, Pens):
        idle = np.setdiff1d(np.arange(K), context.clients)
    else:
        members = state["assignment"].numpy()[context.clients]
        idle = np.setdiff1d(np.arange(rule.clusters), members)
    assert not aggregate.steps[idle].any()
    assert len(mine) == 5


@each(RULES)
def test_non_finite_upload_names_the_client(rule, cohort):
    uploads, context = round_of(rule, cohort, 3)
    uploads["update"][2, 3] = torch.nan
    message = rf"client {context.clients[2]}: upload 'update' has 1 non-finite"
    with pytest.raises(FloatingPointError, match=message):
        rule(uploads, context, started(rule))


@each(RULES)
def test_wrong_shapes_and_absent_uploads_are_refused(rule, cohort):
    uploads, context = round_of(rule, cohort, 4)
    with pytest.raises(ValueError, match="upload 'update' is missing"):
        rule({}, context, started(rule))
    with pytest.raises(ValueError, match=r"'update' has shape \(2, 40\); expected"):
        rule({"update": uploads["update"][:2]}, context, started(rule))
    with pytest.raises(ValueError, match="cohort is empty"):
        rule({"update": torch.ones(0, D)}, cohort(0), started(rule))
