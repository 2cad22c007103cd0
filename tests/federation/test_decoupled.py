"""Penalties beside the optimiser, and the optimiser state of models that clients keep."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsdg.federation.clients import Clients
from fedsdg.federation.local_training import train_clients
from fedsdg.federation.local_work import LocalWork
from fedsdg.federation.objectives.gate_penalty import GatePenalty
from fedsdg.federation.objectives.private_penalty import PrivatePenalty
from fedsdg.federation.optimisers.adam import Adam
from fedsdg.federation.optimisers.sgd import Sgd
from fedsdg.federation.step_rows import PrivateColumns

ETA_G, ETA_P, ETA_M = 0.003, 0.02, 0.1
WORK = LocalWork(Adam(), ETA_G, ETA_P, ETA_M, clip_norm=1e9)


def clients_of(s, batches, **more):
    private = torch.linspace(-1, 1, s.layout.d_private, dtype=torch.float64)[None]
    return Clients([batches], s.theta[None], private, **more)


def penalties(apart, lambda1=0.3, lambda2=0.2):
    return GatePenalty(lambda1, apart), PrivatePenalty(lambda2, decoupled=apart)


def trained(s, work, batches, **more):
    return train_clients(s.model, s.layout, s.samples, clients_of(s, batches, **more), work)


def test_a_decoupled_penalty_is_a_step_of_its_own(setting):
    """After one step: what Adam makes of the loss alone, minus η ∇penalty at the beginning."""
    s = setting(branch="dual")
    batch = [np.arange(8)]
    plain = trained(s, WORK, batch)
    apart = trained(s, replace(WORK, terms=penalties(True)), batch)
    columns = PrivateColumns.of(s.layout)
    start = clients_of(s, batch).private
    m = torch.sigmoid(start[:, columns.gates])
    expected = plain.private.clone()
    expected[:, columns.factors] -= ETA_P * 2 * 0.2 * start[:, columns.factors]
    expected[:, columns.gates] -= ETA_M * 0.3 * m * (1 - m)
    assert torch.allclose(apart.private, expected, rtol=1e-12, atol=1e-15)
    assert torch.equal(apart.theta, plain.theta)
    inside = trained(s, replace(WORK, terms=penalties(False)), batch)
    assert not torch.allclose(inside.private, apart.private, rtol=1e-3)


def test_for_plain_gradient_descent_it_makes_no_difference_where_penalties_are_applied(setting):
    s = setting(branch="dual")
    batches = [np.arange(8), np.arange(8, 16), np.arange(3)]
    work = replace(WORK, optimiser=Sgd())
    inside = trained(s, replace(work, terms=penalties(False)), batches)
    apart = trained(s, replace(work, terms=penalties(True)), batches)
    assert torch.allclose(inside.private, apart.private, rtol=1e-9, atol=1e-12)
    assert torch.allclose(inside.theta, apart.theta, rtol=1e-9, atol=1e-12)


def test_a_decoupled_penalty_is_not_clipped(setting):
    """With a bound near 0 the loss moves nothing by gradient descent; the penalty still does."""
    s = setting(branch="dual")
    work = replace(WORK, optimiser=Sgd(), clip_norm=1e-12)
    found = trained(s, replace(work, terms=penalties(True)), [np.arange(8)])
    start, columns = clients_of(s, []).private, PrivateColumns.of(s.layout)
    expected = (1 - 2 * ETA_P * 0.2) * start[:, columns.factors]
    assert torch.allclose(found.private[:, columns.factors], expected, rtol=1e-9)


@pytest.mark.parametrize("own_model", [False, True])
def test_a_kept_state_goes_on_where_it_was(setting, own_model):
    """Two rounds of a kept row, with its state handed over, are one round of all batches."""
    s = setting(branch="dual")
    first, second = [np.arange(8)], [np.arange(8, 16), np.arange(4)]
    moves = ("shared",) if own_model else ("private",)
    work = replace(WORK, private_optimiser="keep", own_model=own_model, moves=moves)
    zeros = {name: torch.zeros(1, n).double() for name, n in work.moments(s.layout).items()}
    whole = trained(s, work, first + second, state=zeros)
    half = trained(s, work, first, state=zeros)
    rest = replace(clients_of(s, second, state=half.state), begin=half.theta, private=half.private)
    again = train_clients(s.model, s.layout, s.samples, rest, work)
    assert torch.equal(again.theta, whole.theta)
    assert torch.equal(again.private, whole.private)
    assert all(torch.equal(again.state[name], whole.state[name]) for name in zeros)
    assert {name.partition(".")[0] for name in zeros} == {"own" if own_model else "private"}
