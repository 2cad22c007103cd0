"""CGSV: closed forms of the contributions and the weights, and conservation of mass."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsdg.aggregation.rules.cgsv import Cgsv


def start(rule, samples, clients, cohort, updates, state=None):
    samples = np.array(samples)
    context = cohort(clients=clients, federation=len(samples), samples=samples)
    state = rule.init(updates.shape[1], samples) if state is None else state
    return rule({"update": updates}, context, state)


def test_r_starts_as_the_share_of_data():
    state = Cgsv().init(3, np.array([1, 3, 4]))
    np.testing.assert_allclose(state["r"], [0.125, 0.375, 0.5])
    assert state["r"].dtype == torch.float64
    assert state["participations"].tolist() == [0, 0, 0]
    assert Cgsv().broadcast(state) == {}


def test_two_orthogonal_clients_by_hand(cohort):
    """u = e1, e2 with weights 3/5, 4/5 over 7/5: U ~ (3, 4), psi = (.6, .8)."""
    updates = torch.tensor([[2.0, 0], [0, 4.0]], dtype=torch.float64)
    aggregate = start(Cgsv(gamma0=0.25), [3, 4], [0, 1], cohort, updates)
    w = np.array([3, 4]) / 7
    np.testing.assert_allclose(aggregate.weights, w)
    np.testing.assert_allclose(aggregate.diagnostics["alignment"], [0.6, 0.8])
    np.testing.assert_allclose(aggregate.steps[0], w * 3)  # times the mean norm, (2 + 4) / 2
    raw = 0.25 * w + 0.75 * np.array([0.6, 0.8])
    np.testing.assert_allclose(aggregate.state["r"], raw / raw.sum())
    assert aggregate.state["participations"].tolist() == [1, 1]
    literal = start(Cgsv(step_scale="unit"), [3, 4], [0, 1], cohort, updates)
    np.testing.assert_allclose(literal.steps[0], w)


def test_the_second_participation_uses_gamma_two(cohort):
    """gamma_2 = 1 - (1 - gamma0) / 2, counted per client: client 2 joins later with gamma_1."""
    rule, samples = Cgsv(gamma0=0.2, floor=0.0), [1, 1, 2]
    first = torch.tensor([[1.0, 0], [1, 1]], dtype=torch.float64)
    one = start(rule, samples, [0, 1], cohort, first)
    two = start(rule, samples, [1, 2], cohort, first, one.state)
    np.testing.assert_allclose(two.diagnostics["gamma"], [0.6, 0.2])
    assert two.state["participations"].tolist() == [1, 2, 1]
    before = one.state["r"].numpy()
    u = np.array([[1, 0], [np.sqrt(0.5), np.sqrt(0.5)]])
    w = before[1:] / before[1:].sum()
    psi = u @ (w @ u) / np.linalg.norm(w @ u)
    raw = np.array([0.6, 0.2]) * before[1:] + np.array([0.4, 0.8]) * psi
    np.testing.assert_allclose(two.state["r"][1:], raw * before[1:].sum() / raw.sum())
    assert two.state["r"][0] == one.state["r"][0]


def test_gamma0_one_keeps_the_shares_of_data(cohort):
    rule, updates = Cgsv(gamma0=1.0), torch.randn(3, 5)
    state = rule.init(5, np.array([2, 3, 5]))
    for _ in range(4):
        state = start(rule, [2, 3, 5], [0, 1, 2], cohort, updates, state).state
    np.testing.assert_allclose(state["r"], [0.2, 0.3, 0.5])


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), gamma0=st.floats(0, 1), floor=st.sampled_from([0.0, 1e-3]))
def test_mass_is_conserved_and_nothing_is_negative(cohort, seed, gamma0, floor):
    generator = np.random.default_rng(seed)
    rule, samples = Cgsv(gamma0, floor), generator.integers(1, 50, size=8)
    state = rule.init(4, samples)
    for _ in range(6):
        clients = generator.choice(8, size=int(generator.integers(1, 6)), replace=False)
        updates = torch.tensor(generator.normal(size=(len(clients), 4)))
        mass = state["r"][clients].sum()
        aggregate = start(rule, samples, clients, cohort, updates, state)
        assert float(aggregate.state["r"][clients].sum()) == pytest.approx(float(mass), rel=1e-9)
        absent = np.setdiff1d(np.arange(8), clients)
        assert torch.equal(aggregate.state["r"][absent], state["r"][absent])
        state = aggregate.state
        assert float(state["r"].sum()) == pytest.approx(1, rel=1e-9)
        assert (state["r"] >= 0).all()


def test_a_client_against_the_others_falls_to_the_floor(cohort):
    """psi = (1, 1, -1), gamma0 = 0: raw r is psi itself, the third is clamped."""
    updates = torch.tensor([[1.0], [2], [-5]], dtype=torch.float64)
    aggregate = start(Cgsv(gamma0=0.0, floor=0.01), [1, 1, 1], [0, 1, 2], cohort, updates)
    np.testing.assert_allclose(aggregate.diagnostics["alignment"], [1, 1, -1])
    np.testing.assert_allclose(aggregate.state["r"], np.array([1, 1, 0.01]) / 2.01)


@pytest.mark.parametrize("floor", [0.0, 1e-3])
def test_nothing_positive_keeps_r(floor, cohort):
    """Unit vectors that cancel: psi = 0 for all, and with gamma0 = 0 nothing would be left."""
    update = torch.randn(1, 50)
    updates = torch.cat([update, -3 * update, torch.zeros(1, 50)])
    aggregate = start(Cgsv(gamma0=0.0, floor=floor), [1, 1, 3], [0, 1, 2], cohort, updates)
    np.testing.assert_array_equal(aggregate.diagnostics["alignment"], [0, 0, 0])
    np.testing.assert_allclose(aggregate.state["r"], [0.2, 0.2, 0.6])


def test_a_zero_update_contributes_nothing(cohort):
    updates = torch.tensor([[0.0, 0], [3, 4]], dtype=torch.float64)
    aggregate = start(Cgsv(), [1, 1], [0, 1], cohort, updates)
    np.testing.assert_allclose(aggregate.diagnostics["alignment"], [0, 1])
    # U = u_2 / 2, times the mean norm 2.5
    np.testing.assert_allclose(aggregate.steps[0], [0.75, 1.0])


def test_clients_without_data_share_evenly(cohort):
    aggregate = start(Cgsv(), [0, 0, 5], [0, 1], cohort, torch.eye(2))
    np.testing.assert_allclose(aggregate.weights, [0.5, 0.5])


def test_impossible_options_are_refused():
    for options in (
        {"gamma0": 1.1},
        {"gamma0": -0.1},
        {"floor": -1.0},
        {"floor": 1.0},
        {"step_scale": "none"},
    ):
        with pytest.raises(ValueError, match=next(iter(options))):
            Cgsv(**options)
    with pytest.raises(ValueError, match="client_samples"):
        Cgsv().init(1, np.zeros(3))
