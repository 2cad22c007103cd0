"""CGSV as published: against the algorithm written out in loops, and closed forms."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsdg.aggregation.rules.cgsv_xu import CgsvXu, largest_entries


def run(rule, updates, samples, cohort, state=None, clients=None):
    samples = np.array(samples)
    state = rule.init(updates.shape[1], samples) if state is None else state
    context = cohort(
        clients=np.arange(len(samples)) if clients is None else clients,
        federation=len(samples),
        samples=samples,
    )
    return rule({"update": torch.as_tensor(updates)}, context, state)


class Written:
    """Algorithm 1 of Xu et al. 2021, with the clamp of the authors' code, entry by entry."""

    def __init__(self, samples, gamma, alpha, beta, floor):
        self.shares, self.r = samples / samples.sum(), np.zeros(len(samples))
        self.gamma, self.alpha, self.beta, self.floor = gamma, alpha, beta, floor

    def round(self, updates):
        size, d = updates.shape
        weights = self.r if self.r.sum() > 0 else self.shares
        u = [self.gamma * row / np.sqrt((row**2).sum()) for row in updates]
        total = sum(weights[n] * u[n] for n in range(size))
        psi = [u[n] @ total / np.sqrt(u[n] @ u[n]) / np.sqrt(total @ total) for n in range(size)]
        r = [self.alpha * self.r[n] + (1 - self.alpha) * psi[n] for n in range(size)]
        r = [max(value, self.floor) for value in r]
        self.r = np.array(r) / sum(r)
        rewards = []
        largest = max(np.tanh(self.beta * value) for value in self.r)
        for value in self.r:
            q = int(np.floor(d * (np.tanh(self.beta * value) / largest) + 1e-9))
            reward = np.zeros(d)
            for entry in sorted(range(d), key=lambda j: -abs(total[j]))[:q]:
                reward[entry] = total[entry]
            rewards.append(reward)
        return np.array(rewards), np.array(weights), np.array(psi)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    gamma=st.sampled_from([0.15, 0.5]),
    alpha=st.floats(0, 0.99),
    beta=st.sampled_from([0.5, 1.0, 2.0, 1e7]),
)
def test_five_rounds_of_the_algorithm(cohort, seed, gamma, alpha, beta):
    generator = np.random.default_rng(seed)
    size, d = int(generator.integers(2, 7)), int(generator.integers(2, 30))
    samples = generator.integers(1, 50, size)
    rule = CgsvXu(gamma, alpha, beta, 1e-3)
    written, state = Written(samples, gamma, alpha, beta, 1e-3), None
    for _ in range(5):
        updates = generator.normal(size=(size, d)) + generator.normal(size=d)
        aggregate = run(rule, updates, samples, cohort, state)
        rewards, weights, psi = written.round(updates)
        np.testing.assert_allclose(aggregate.steps, rewards, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(aggregate.weights, weights, rtol=1e-9)
        np.testing.assert_allclose(aggregate.diagnostics["alignment"], psi, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(aggregate.state["r"], written.r, rtol=1e-8)
        np.testing.assert_allclose(aggregate.diagnostics["contribution"], written.r, rtol=1e-8)
        state = aggregate.state


def test_two_orthogonal_clients_by_hand(cohort):
    """u = e1, e2 with weights 3/7, 4/7: U = Gamma (3, 4) / 7, psi = (.6, .8), r = (3, 4) / 7."""
    updates = torch.tensor([[2.0, 0], [0, 5.0]], dtype=torch.float64)
    aggregate = run(CgsvXu(gamma=0.7, beta=1e-3), updates, [3, 4], cohort)
    np.testing.assert_allclose(aggregate.diagnostics["alignment"], [0.6, 0.8])
    np.testing.assert_allclose(aggregate.state["r"], np.array([3, 4]) / 7)
    # A small beta is linear: q = floor(2 * 3 / 4), 2. The first gets the larger entry of U.
    np.testing.assert_allclose(aggregate.steps, [[0.0, 0.4], [0.3, 0.4]])
    np.testing.assert_allclose(aggregate.diagnostics["reward"], [0.5, 1.0])


def test_without_altruism_the_best_get_all_and_with_it_everybody(cohort):
    generator = np.random.default_rng(0)
    updates = generator.normal(size=(5, 200)) + np.linspace(0, 2, 5)[:, None]
    aggregate = run(CgsvXu(beta=0.5), updates, [1] * 5, cohort)
    r, kept = aggregate.state["r"].numpy(), aggregate.steps.numpy() != 0
    assert (np.diff(r) > 0).all()
    assert (np.diff(kept.sum(1)) > 0).all()
    assert kept[4].all()
    assert all((kept[n + 1] >= kept[n]).all() for n in range(4))
    everybody = run(CgsvXu(beta=1e7), updates, [1] * 5, cohort).steps
    assert torch.equal(everybody, everybody[4].expand(5, -1))
    torch.testing.assert_close(everybody[4], aggregate.steps[4])


def test_models_and_steps_belong_to_ids_whatever_the_order_of_the_cohort(cohort):
    generator = np.random.default_rng(1)
    updates, order = generator.normal(size=(4, 9)), np.array([2, 0, 3, 1])
    one = run(CgsvXu(), updates, [1, 2, 3, 4], cohort)
    two = run(CgsvXu(), updates[order], [1, 2, 3, 4], cohort, clients=order)
    torch.testing.assert_close(two.steps, one.steps)
    torch.testing.assert_close(two.state["r"], one.state["r"])
    np.testing.assert_allclose(two.diagnostics["reward"], one.diagnostics["reward"][order])
    assert CgsvXu().models(4) == 4
    rows = CgsvXu().mixing(one.state, order)
    assert rows.tolist() == np.eye(4)[order].tolist()


def test_a_client_against_the_others_falls_to_the_floor(cohort):
    """psi = (1, 1, -1): r = (0.05, 0.05, floor) over their sum, as r starts at 0."""
    updates = torch.tensor([[1.0], [2], [-5]], dtype=torch.float64)
    aggregate = run(CgsvXu(floor=0.01), updates, [1, 1, 1], cohort)
    np.testing.assert_allclose(aggregate.diagnostics["alignment"], [1, 1, -1])
    np.testing.assert_allclose(aggregate.state["r"], np.array([0.05, 0.05, 0.01]) / 0.11)


def test_unit_vectors_that_cancel_change_nothing(cohort):
    """No one has contributed: r stays 0, so the next round weighs by the data again."""
    update = torch.randn(1, 50)
    updates = torch.cat([update, -3 * update, torch.zeros(1, 50)])
    aggregate = run(CgsvXu(), updates, [1, 1, 2], cohort)
    np.testing.assert_array_equal(aggregate.diagnostics["alignment"], [0, 0, 0])
    assert aggregate.state["r"].tolist() == [0, 0, 0]
    assert aggregate.steps.abs().max() < 1e-6
    again = run(CgsvXu(), torch.randn(3, 50), [1, 1, 2], cohort, aggregate.state)
    np.testing.assert_allclose(again.weights, [0.25, 0.25, 0.5])
    later = run(CgsvXu(), updates, [1, 1, 2], cohort, {"r": torch.tensor([0.0, 0.0, 0.0]).double()})
    assert later.state["r"].sum() == 0


def test_full_participation_is_asked_for(cohort):
    for clients in ([0, 1], [0, 1, 1]):
        with pytest.raises(ValueError, match="2 of the 3 take part; set clients_per_round"):
            run(CgsvXu(), torch.randn(len(clients), 4), [1, 1, 1], cohort, clients=clients)


def test_impossible_options_are_refused():
    for options in ({"gamma": 0.0}, {"alpha": 1.0}, {"beta": 0.0}, {"floor": 1.0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            CgsvXu(**options)
    with pytest.raises(ValueError, match="client_samples"):
        CgsvXu().init(1, np.zeros(3))


@settings(max_examples=50, deadline=None)
@given(values=st.lists(st.integers(-4, 4), min_size=1, max_size=12), seed=st.integers(0, 100))
def test_largest_entries_by_brute_force(values, seed):
    """Many equal magnitudes: the first of them count as larger."""
    counts = np.random.default_rng(seed).integers(0, len(values) + 1, size=4)
    found = largest_entries(torch.tensor(values, dtype=torch.float32), counts)
    for row, count in zip(found.tolist(), counts, strict=True):
        kept = sorted(range(len(values)), key=lambda j: (-abs(values[j]), j))[:count]
        assert row == [float(v) if j in kept else 0.0 for j, v in enumerate(values)]
