"""Gated and residual heads, gates that learn on samples of their own: closed forms and limits."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedsdg.federation.clients import Clients
from fedsdg.federation.cohort_training import log_class_shares
from fedsdg.federation.cohorts import samples_for_gates
from fedsdg.federation.local_training import train_clients
from fedsdg.federation.local_work import LocalWork
from fedsdg.federation.optimisers.adam import Adam
from fedsdg.federation.optimisers.sgd import Sgd
from fedsdg.models.adapters import HEAD_GATE, personal_head
from fedsdg.models.parameters import leaves, offsets, views

WORK = LocalWork(Adam(), 0.003, 0.01, 0.1, clip_norm=1e9)
BATCHES = [[np.arange(8), np.arange(8, 13)], [np.arange(20, 27)]]
#: Of the first client's samples, of the second's none in the first six.
FOR_GATES = torch.zeros(120, dtype=torch.bool)
FOR_GATES[[1, 2, 9, 26]] = True


def rows_of(s, clients=2):
    """Parameters of clients that differ in all that is private."""
    draw = torch.Generator().manual_seed(3)
    private = s.private + 0.1 * torch.randn(clients, s.layout.d_private, generator=draw).double()
    return s.theta.expand(clients, -1).clone(), private


def trained(s, work=WORK, batches=BATCHES, for_gates=None, private=None):
    theta, mine = rows_of(s, len(batches))
    samples = replace(s.samples, for_gates=for_gates)
    clients = Clients(batches, theta, mine if private is None else private)
    return train_clients(s.model, s.layout, samples, clients, work)


def one_step(s, batches, for_gates):
    """The gradients of one step by Sgd at rate 1, and by autograd from the definition."""
    work = replace(WORK, optimiser=Sgd(), eta_g=1.0, eta_p=1.0, eta_m=1.0)
    theta, private = rows_of(s, len(batches))
    found = trained(s, work, batches, for_gates)
    return theta - found.theta, private - found.private


def gradients_by_definition(s, batch, client, for_gates):
    """By autograd, sample by sample: a held-out one sees θ_p as a constant, another the gates."""
    theta, private = (row[client : client + 1] for row in rows_of(s))
    slopes = torch.zeros_like(theta), torch.zeros_like(private)
    for k in batch.tolist():
        named = leaves(theta, slopes[0], s.layout.communicated)
        mine = leaves(private, slopes[1], s.layout.private)
        fixed = "_private" if for_gates[k] else "lambda_k_logit"
        mine = {n: v.detach() if n.endswith(fixed) else v for n, v in mine.items()}
        logits = s.model.logits(s.samples.images[k : k + 1], [1], {**named, **mine})
        (cross_entropy(logits, s.samples.labels[k : k + 1]) / len(batch)).backward()
    return slopes


@pytest.mark.parametrize("options", [{"head": "gated"}, {"branch": "dual"}], ids=str)
def test_gradients_are_those_of_the_definition(setting, options):
    s = setting(**options)
    batches = [[BATCHES[0][0]], [BATCHES[1][0]]]
    shared, private = one_step(s, batches, FOR_GATES)
    for client, (batch,) in enumerate(batches):
        by_theta, by_private = gradients_by_definition(s, batch, client, FOR_GATES)
        assert torch.allclose(shared[client], by_theta[0], rtol=1e-9, atol=1e-12)
        assert torch.allclose(private[client], by_private[0], rtol=1e-9, atol=1e-12)
        assert bool(by_private.any())


def test_no_gate_learns_from_the_others_and_no_private_head_from_held_out_samples(setting):
    s = setting(head="gated")
    columns = offsets(s.layout.private)
    head = slice(columns["head.weight_private"].start, columns["head.bias_private"].stop)
    _, none = one_step(s, [[np.arange(20, 26)]], FOR_GATES)
    assert not none[:, columns[HEAD_GATE]].any()
    assert none[:, head].any()
    _, all_held = one_step(s, [[np.array([1, 2, 9])]], FOR_GATES)
    assert all_held[:, columns[HEAD_GATE]].any()
    assert not all_held[:, head].any()


def test_a_gate_fixed_at_nought_is_a_shared_head(setting):
    """The communicated row moves as that of FedAvg does, the private one not at all."""
    gated, plain = setting(head="gated", gate_fixed=0.0), setting()
    found = trained(gated)
    assert torch.equal(found.theta, trained(plain).theta)
    assert torch.equal(found.private, rows_of(gated)[1])


def test_a_gate_fixed_at_one_is_a_private_head(setting):
    """From equal first values of the private head adapters move as those of FedPer do."""
    gated, apart = setting(head="gated", gate_fixed=1.0), setting(head="private")
    work = replace(WORK, eta_p=WORK.eta_g)  # FedPer's private head moves by η_g
    found = trained(gated, work, private=gated.private.expand(2, -1))
    there = trained(apart, work, private=gated.private.expand(2, -1))
    assert torch.allclose(found.theta[:, : apart.layout.d], there.theta, rtol=1e-12, atol=1e-15)
    assert torch.allclose(found.private, there.private, rtol=1e-12, atol=1e-15)
    assert torch.equal(
        found.theta[:, apart.layout.d :], gated.theta[apart.layout.d :].expand(2, -1)
    )


def test_what_is_communicated_is_what_fedavg_communicates(setting):
    for head in ("gated", "residual"):
        layout = setting(head=head).layout
        assert layout.communicated == setting().layout.communicated
        assert layout.global_model
        assert layout.trains_private


def test_the_merged_head_is_what_an_export_has(setting):
    """Scores of the exported weights are those of the client's model."""
    for options in ({"head": "gated"}, {"head": "residual"}):
        s = setting(**options)
        theta, private = rows_of(s, 1)
        named = {**views(theta, s.layout.communicated), **views(private, s.layout.private)}
        portable = s.model.portable(named)
        weight, bias = personal_head(named, s.model.config, private=True)
        assert torch.equal(portable.weights["head.weight"], weight[0])
        assert torch.equal(portable.weights["head.bias"], bias[0])
        shared = s.model.portable(named, private=False).weights
        assert torch.equal(shared["head.weight"], named["head.weight"][0])
    m = 0.25
    config = replace(setting(head="gated").model.config, gate_fixed=m)
    weight, _ = personal_head(named, config, private=True)
    expected = (1 - m) * named["head.weight"] + m * named["head.weight_private"]
    assert torch.allclose(weight, expected, rtol=1e-15)


def test_a_gated_head_stands_beside_no_private_branch(setting):
    with pytest.raises(ValueError, match="a gated head has no place beside a private branch"):
        setting(branch="dual", head="gated")


def test_fed_rod_is_two_steps_for_every_batch(setting):
    """One batch by hand: W_p along the cross-entropy of both heads, then θ_g and W_g alone.

    The second loss is the balanced softmax, −log (n_y e^{z_y} / Σ_c n_c e^{z_c}).
    """
    s = setting(head="residual")
    batch = np.array([0, 3, 5, 6, 7, 11])
    work = replace(
        WORK, optimiser=Sgd(), eta_g=0.5, eta_p=0.5, interleaved=True, shared_alone=True,
        balanced=True,
    )  # fmt: skip
    found = trained(s, work, [[batch]])
    theta, private = rows_of(s, 1)
    images, labels = s.samples.images[batch], s.samples.labels[batch]
    slopes = torch.zeros_like(private)
    named = {**views(theta, s.layout.communicated), **leaves(private, slopes, s.layout.private)}
    cross_entropy(s.model.logits(images, [6], named), labels).backward()
    assert torch.allclose(found.private, private - 0.5 * slopes, rtol=1e-10, atol=1e-13)
    slopes = torch.zeros_like(theta)
    named = leaves(theta, slopes, s.layout.communicated)
    scores = s.model.logits(images, [6], named, private=False)
    counts = torch.bincount(labels, minlength=4).double().clamp(min=1e-9)
    weighed = counts * scores.exp()
    (-(weighed[range(6), labels] / weighed.sum(1)).log().mean()).backward()
    assert torch.allclose(found.theta, theta - 0.5 * slopes, rtol=1e-9, atol=1e-12)


def test_class_shares_are_counted_once_a_sample():
    labels = torch.tensor([0, 0, 1, 1, 1, 2])
    epochs = [np.array([0, 2, 3]), np.array([4]), np.array([4, 3, 2]), np.array([0])]
    found = log_class_shares([epochs], labels, 3).exp()
    assert torch.allclose(found[0, :2], torch.tensor([0.25, 0.75]).double())
    assert 0 < float(found[0, 2]) < 1e-8


@pytest.mark.parametrize("seed", range(3))
def test_the_samples_for_gates_are_a_stratified_quarter(seed):
    """Of c samples of a class c/4, rounded down or up; of all n of a client too; its own stream."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 5, 400)
    order = draw.permutation(400)
    train = [order[:150], order[150:157], order[157:160], order[160:161], order[161:330]]
    chosen = samples_for_gates(train, labels, seed)
    assert not chosen[order[330:]].any()
    for own in train:
        if len(own) >= 4:
            assert int(chosen[own].sum()) in (len(own) // 4, -(-len(own) // 4))
        for label in range(5):
            count = int((labels[own] == label).sum())
            taken = int(chosen[own][labels[own] == label].sum())
            assert taken in (count // 4, -(-count // 4))
    assert chosen[train[2]].sum() == 1
    assert not chosen[train[3]].any()
    alone = samples_for_gates(train[:1], labels, seed)
    assert np.array_equal(alone[train[0]], chosen[train[0]])
    assert not np.array_equal(chosen, samples_for_gates(train, labels, seed + 10))
