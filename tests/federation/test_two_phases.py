"""FedRep's local training: the private row first, then the shared one, each as if it were alone."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedsdg.federation.clients import Clients
from fedsdg.federation.local_training import train_clients
from fedsdg.federation.local_work import LocalWork
from fedsdg.federation.objectives.private_penalty import PrivatePenalty
from fedsdg.federation.objectives.proximal import Proximal
from fedsdg.federation.optimisers.adam import Adam
from fedsdg.federation.optimisers.sgd import Sgd
from fedsdg.federation.passes import Passes
from fedsdg.federation.personalisation.own_head import OwnHead
from fedsdg.federation.step_rows import PrivateColumns
from fedsdg.models.parameters import views

SIZES = [3, 17, 8, 1, 16]
ADAM = Adam()
HEAD, BODY = 2, 3


def task(setting, batches_of, optimiser=ADAM, clip=0.05, terms=(), **options):
    s = setting(**{"head": "private", **options})
    m = len(SIZES)
    work = LocalWork(optimiser, 3e-3, 2e-3, 5e-3, clip, terms, private_first=HEAD)
    batches = batches_of(SIZES, epochs=work.epochs(BODY))
    clients = Clients(batches, s.theta.expand(m, -1), s.private.expand(m, -1))
    return s, clients, work


def by_torch(s, clients, k, optimiser, clip, rate):
    """One client: torch's optimiser over the parameters that move, the others without gradient."""
    named = {
        **views(s.theta[None], s.layout.communicated),
        **views(s.private[None], s.layout.private),
    }
    named = {name: value.clone() for name, value in named.items()}
    per_epoch = len(clients.batches[k]) // (HEAD + BODY)
    for moving, epochs in (
        (s.layout.private, slice(0, HEAD)),
        (s.layout.communicated, slice(HEAD, None)),
    ):
        chosen = [named[spec.name].requires_grad_() for spec in moving]
        mover = {Adam(): torch.optim.Adam, Sgd(): torch.optim.SGD}[optimiser](chosen, lr=rate)
        begin, stop, _ = epochs.indices(HEAD + BODY)
        for batch in clients.batches[k][begin * per_epoch : stop * per_epoch]:
            mover.zero_grad()
            logits = s.model.logits(s.samples.images[batch], [len(batch)], named)
            cross_entropy(logits, s.samples.labels[batch]).backward()
            torch.nn.utils.clip_grad_norm_(chosen, clip)
            mover.step()
        for value in chosen:
            value.requires_grad_(False)
            value.grad = None
    return tuple(
        torch.cat([named[spec.name].flatten() for spec in specs])
        for specs in (s.layout.communicated, s.layout.private)
    )


@pytest.mark.parametrize("optimiser", [Adam(), Sgd()])
def test_head_then_body_equals_torch_with_frozen_parameters(setting, batches_of, optimiser):
    """The head is a shared-group parameter and moves with η_g; clipping is over what moves."""
    s, clients, work = task(setting, batches_of, optimiser)
    result = train_clients(s.model, s.layout, s.samples, clients, work)
    for k in range(len(SIZES)):
        theta, private = by_torch(s, clients, k, optimiser, 0.05, 3e-3)
        for ours, theirs, start in (
            (result.theta[k], theta, s.theta),
            (result.private[k], private, s.private),
        ):
            # torch clips by norm + 1e-6 too; its Adam rounds in another order.
            assert float((ours - theirs).norm()) < 1e-6 * float((theirs - start).norm())
    assert result.steps.tolist() == [(HEAD + BODY) * -(-n // 4) for n in SIZES]
    assert result.samples.tolist() == [(HEAD + BODY) * n for n in SIZES]


def test_in_each_phase_the_other_row_stays_bit_for_bit(setting, batches_of):
    """Even where a term would pull at it."""
    s, clients, work = task(
        setting, batches_of, terms=(Proximal(0.5), PrivatePenalty(0.5)), branch="dual"
    )
    head_only = [own[: HEAD * (len(own) // (HEAD + BODY))] for own in clients.batches]
    first = train_clients(
        s.model, s.layout, s.samples, dataclasses.replace(clients, batches=head_only), work
    )
    assert torch.equal(first.theta, clients.start)
    whole = train_clients(s.model, s.layout, s.samples, clients, work)
    assert torch.equal(whole.private, first.private)
    assert not torch.equal(whole.theta, clients.start)


def test_the_penalty_leaves_a_private_head_alone(setting):
    s = setting(branch="dual", head="private")
    columns = PrivateColumns.of(s.layout)
    size = sum(spec.size for spec in s.layout.private[:2])
    assert not columns.factors[:size].any()
    assert int(columns.factors.sum()) == s.layout.d_private - size - len(columns.gates)


def test_two_phases_do_not_depend_on_the_clients_per_pass(setting, batches_of):
    s, clients, work = task(setting, batches_of)
    whole = train_clients(s.model, s.layout, s.samples, clients, work)
    for number in (1, 2, 3):
        parts = Passes(4, number).train(s.model, s.layout, s.samples, clients, work)
        assert torch.allclose(parts.theta, whole.theta, rtol=0, atol=1e-11)
        assert torch.allclose(parts.private, whole.private, rtol=0, atol=1e-11)


def test_a_trace_numbers_the_steps_through_both_phases(setting, batches_of):
    s, clients, work = task(setting, batches_of)
    work = dataclasses.replace(work, trace_every=3)
    result = train_clients(s.model, s.layout, s.samples, clients, work)
    for k in range(len(SIZES)):
        seen = [row["step"] for row in result.trace if row["client"] == k]
        assert sorted(seen) == list(range(0, int(result.steps[k]), 3))
        assert all(np.isfinite(row["task_loss"]) for row in result.trace)


def test_the_first_epochs_are_added_to_the_usual_ones():
    chosen = OwnHead(2)
    assert chosen.adapters == {"head": "private"} and chosen.private_first == 2
    work = LocalWork(Adam(), 1.0, 1.0, 1.0, 1.0, private_first=chosen.private_first)
    assert work.epochs(5) == 7
