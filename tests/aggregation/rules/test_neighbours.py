"""PENS: the bank, the counting of picks against chance, and whether groups find each other."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsdg.aggregation.rules.neighbours import Pens


def drawn(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).normal(size=shape))


def call(rule, cohort, clients, models, state, scores=None, updates=None):
    clients, size = np.asarray(clients), len(models)
    uploads = {"update": drawn(len(clients), models.shape[1]) if updates is None else updates}
    if scores is not None:
        uploads["scores"] = torch.as_tensor(scores)
    made = replace(cohort(clients=clients, federation=size), models=models)
    return rule(uploads, made, state)


def scores_of(size, *rows):
    """[M, size] from a dict of scores for each row."""
    scores = np.full((len(rows), size), np.nan)
    for k, row in enumerate(rows):
        scores[k, list(row)] = list(row.values())
    return scores


def test_the_first_start_is_the_clients_own_row():
    rule = Pens()
    state = rule.init(3, np.ones(5))
    assert rule.models(5) == 5
    assert rule.mixing(state, np.array([3, 0])).tolist() == np.eye(5)[[3, 0]].tolist()


def test_a_clients_model_replaces_its_row_of_the_bank(cohort):
    """theta_k = start_k + Delta_k, whatever the start; other rows stay, bit for bit."""
    rule, models = Pens(), drawn(6, 4, seed=1)
    state = rule.init(4, np.ones(6))
    state["latest"][2, [0, 5]] = 1
    updates, clients = drawn(2, 4, seed=2), np.array([2, 4])
    start = rule.mixing(state, clients) @ models.numpy()
    np.testing.assert_allclose(start[0], models[[0, 2, 5]].mean(0))
    aggregate = call(rule, cohort, clients, models, state, np.full((2, 6), np.nan), updates)
    moved = models + aggregate.steps
    np.testing.assert_allclose(moved[clients], start + updates.numpy(), atol=1e-14)
    assert torch.equal(moved[[0, 1, 3, 5]], models[[0, 1, 3, 5]])
    assert torch.equal(aggregate.steps[4], updates[1])  # A client alone: its update itself.
    assert aggregate.weights is None


def test_picks_by_hand(cohort):
    rule, models = Pens(phase_one=2, top=2), drawn(6, 3)
    state = rule.init(3, np.ones(6))
    state["trained"][[0, 1, 2, 3]] = 1
    scores = scores_of(
        6,
        # 4 was never trained and 0 is the client itself: of 1, 2 and 3, the lowest two.
        {0: 0.0, 1: 3.0, 2: 1.0, 3: 2.0, 4: 0.5},
        # A single model: picked, as chance would.
        {3: 7.0},
        # Only untrained ones.
        {4: 1.0},
    )
    aggregate = call(rule, cohort, [0, 1, 5], models, state, scores)
    found = aggregate.state
    assert found["latest"][0].tolist() == found["picked"][0].tolist() == [0, 0, 1, 1, 0, 0]
    np.testing.assert_allclose(found["expected"][0], [0, 2 / 3, 2 / 3, 2 / 3, 0, 0])
    assert found["picked"][1].tolist() == [0, 0, 0, 1, 0, 0]
    assert found["expected"][1].tolist() == [0, 0, 0, 1, 0, 0]
    assert not found["picked"][5].any()
    assert found["trained"].tolist() == [1, 1, 1, 1, 0, 1]
    assert found["rounds"].tolist() == [1]
    assert aggregate.diagnostics["neighbours"].tolist() == [2, 1, 0]
    third = np.array([[1, 0, 1, 1, 0, 0]]) / 3
    np.testing.assert_allclose(rule.mixing(found, np.array([0])), third)
    # The second round is the last of phase 1: 2 again, and 1 instead of 3, which is no better.
    again = scores_of(6, {1: 0.0, 2: 1.0, 3: 2.0})
    second = call(rule, cohort, [0], models, found, again)
    np.testing.assert_allclose(second.state["expected"][0], [0, 4 / 3, 4 / 3, 4 / 3, 0, 0])
    assert second.state["picked"][0].tolist() == [0, 1, 2, 1, 0, 0]
    # Only 2 was picked more often than 4/3 times; client 1 saw no more than chance and is alone.
    rows = rule.mixing(second.state, np.array([0, 1]))
    np.testing.assert_allclose(rows, [[0.5, 0, 0.5, 0, 0, 0], [0, 1, 0, 0, 0, 0]])
    assert second.diagnostics["neighbours"].tolist() == [1]


def test_scores_are_read_in_phase_one_only(cohort):
    rule, models = Pens(phase_one=1, top=1), drawn(4, 3)
    state = rule.init(3, np.ones(4))
    with pytest.raises(ValueError, match="upload 'scores' is missing"):
        call(rule, cohort, [0, 1], models, state)
    state = call(rule, cohort, [0, 1], models, state, np.full((2, 4), np.nan)).state
    after = call(rule, cohort, [1, 2], models, state).state
    for name in ("picked", "expected", "latest"):
        assert torch.equal(after[name], state[name])
    assert after["trained"].tolist() == [1, 1, 1, 0]
    alone = Pens(phase_one=0)
    assert call(alone, cohort, [1], models, alone.init(3, np.ones(4))).steps[1].any()


def test_picks_add_up_to_what_chance_expects(cohort):
    """Of the models that a client scored, m are picked and m expected: the sums are equal."""
    generator = np.random.default_rng(0)
    rule, models = Pens(phase_one=30, top=2), drawn(8, 2)
    state = rule.init(2, np.ones(8))
    for _ in range(30):
        clients = generator.choice(8, 4, replace=False)
        scores = np.full((4, 8), np.nan)
        for k in range(4):
            scores[k, generator.choice(8, 5, replace=False)] = generator.integers(0, 4, 5)
        state = call(rule, cohort, clients, models, state, scores).state
    np.testing.assert_allclose(state["picked"].sum(1), state["expected"].sum(1))
    assert not state["picked"].diagonal().any()
    assert (state["latest"].sum(1) <= 2).all()


@pytest.mark.parametrize("seed", range(4))
def test_groups_find_each_other(cohort, seed):
    """Two groups with quadratic losses around far points; l = 5 models of the bank are scored.

    After enough rounds for chance to even out, every neighbour is of a client's own group, all have
    some, and in phase 2 the models stay with the groups' points, far from the mean of all.
    """
    generator = np.random.default_rng(seed)
    size, d = 10, 4
    groups = generator.permutation(np.arange(size) % 2)
    points = np.array([[5.0, 0, 0, 0], [-5.0, 0, 0, 0]])
    targets = torch.tensor(points[groups] + 0.2 * generator.normal(size=(size, d)))
    rule = Pens(phase_one=100, top=2)
    models, state = torch.zeros(size, d).double(), rule.init(d, np.ones(size))
    for round_ in range(120):
        clients = generator.choice(size, 5, replace=False)
        start = torch.as_tensor(rule.mixing(state, clients)) @ models
        scores = np.full((5, size), np.nan)
        for k, client in enumerate(clients):
            others = generator.choice(np.delete(np.arange(size), client), 5, replace=False)
            scores[k, others] = ((models[others] - targets[client]) ** 2).sum(1) / 2
        updates = 0.9 * (targets[clients] - start)
        given = scores if round_ < 100 else None
        aggregate = call(rule, cohort, clients, models, state, given, updates)
        models, state = models + aggregate.steps, aggregate.state
    rows = rule.mixing(state, np.arange(size))
    assert not (rows * (groups[:, None] != groups[None])).any()
    assert (np.count_nonzero(rows, axis=1) > 1).all()
    np.testing.assert_allclose(rows.sum(1), 1)
    np.testing.assert_allclose(models, points[groups], atol=1.0)


def test_of_equal_scores_the_lower_id_is_picked(cohort):
    rule, models = Pens(top=2), drawn(6, 3)
    state = rule.init(3, np.ones(6))
    state["trained"][:] = 1
    found = call(rule, cohort, [3], models, state, np.ones((1, 6))).state
    assert found["latest"][3].tolist() == [1, 1, 0, 0, 0, 0]
    np.testing.assert_allclose(found["expected"][3], np.array([1, 1, 1, 0, 1, 1]) * 2 / 5)


def test_who_can_score_nothing_keeps_the_last_picks(cohort):
    rule, models = Pens(), drawn(4, 3)
    state = rule.init(3, np.ones(4))
    state["latest"][1, 2] = 1
    found = call(rule, cohort, [1], models, state, np.full((1, 4), np.nan)).state
    assert found["latest"][1].tolist() == [0, 0, 1, 0]


def test_bad_options_and_models_are_refused(cohort):
    for options in ({"phase_one": -1}, {"sample": 0}, {"top": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            Pens(**options)
    rule = Pens()
    made = cohort(clients=[0, 1], federation=4)
    with pytest.raises(ValueError, match=r"holds no models, but the rule serves \[4, 3\]"):
        rule({"update": torch.zeros(2, 3)}, made, rule.init(3, np.ones(4)))
    scores = np.zeros((2, 3))
    with pytest.raises(ValueError, match=r"'scores' has shape \[2, 3\]; .* each of the 4 models"):
        call(rule, cohort, [0, 1], drawn(4, 3), rule.init(3, np.ones(4)), scores)
