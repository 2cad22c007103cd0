"""Models that clients keep: closed forms and recursions on quadratics, limits, who has none yet.

Client k has F_k(v) = ½ a_k (v − b_k)². A step of gradient descent on F_k + λ/2 (v − θ)² contracts
to (a b + λ θ) / (a + λ) by 1 − η (a + λ), so K steps have a closed form.
"""

import dataclasses

import numpy as np
import pytest
import torch

from fedsdg.federation.bank import ClientBank
from fedsdg.federation.clients import Clients
from fedsdg.federation.local_training import train_clients
from fedsdg.federation.local_work import LocalWork, Samples
from fedsdg.federation.objectives.control_variates import ControlVariates
from fedsdg.federation.objectives.proximal import Proximal
from fedsdg.federation.optimisers.sgd import Sgd
from fedsdg.federation.own_models.ditto import Ditto
from fedsdg.federation.own_models.interpolation import GRID, Interpolation
from fedsdg.federation.own_models.own_model import OwnModel
from fedsdg.federation.passes import Passes
from fedsdg.models.parameters import Layout, ParameterSpec

D, RATE, STEPS, CLIENTS = 2, 0.05, 4, 5
LAYOUT = Layout((ParameterSpec("w", (D,), "shared"),), ())
DRAW = np.random.default_rng(0)
A, B = DRAW.uniform(0.5, 4.0, CLIENTS), DRAW.normal(size=(CLIENTS, D))
SAMPLES = Samples(torch.zeros(CLIENTS, 1), torch.arange(CLIENTS))


class Identity:
    """Predicts its parameter for every sample: the loss makes it a quadratic."""

    def logits(self, images, counts, parameters):
        return parameters["w"].repeat_interleave(torch.tensor(counts), dim=0)


def loss(prediction, label, reduction):
    a, b = torch.from_numpy(A), torch.from_numpy(B)
    return 0.5 * a[label] * (prediction - b[label]).square().sum(1)


def no_score(_):
    raise AssertionError("a given weight needs no validation samples")


def federate(own, cohorts, score=no_score, start=0.3):
    """FedAvg over the given cohorts with an own model; (server, what clients use) after each."""
    work = LocalWork(Sgd(), RATE, 0.0, 0.0, 1e9, loss=loss)
    server = torch.full((D,), start, dtype=torch.float64)
    bank = ClientBank(CLIENTS, server.new_zeros(0), own.keeps, D)
    history = []

    def train(clients, terms):
        own_work = dataclasses.replace(work, terms=terms)
        return train_clients(Identity(), LAYOUT, SAMPLES, clients, own_work)

    for cohort in cohorts:
        place = torch.tensor(cohort)
        private, kept = bank.gather(place)
        has = bank.trained[place]
        downloaded = server.expand(len(cohort), -1)
        clients = Clients([[np.array([k])] * STEPS for k in cohort], downloaded, private, kept)
        clients = dataclasses.replace(clients, begin=own.begin(downloaded, kept, has, score))
        local = train(clients, ())
        stays, _ = own.keep(train, clients, has, local)
        bank.scatter(place, private, stays)
        server = server + (local.theta - downloaded).mean(0)
        everyone = torch.arange(CLIENTS)
        used = own.models(server.expand(CLIENTS, -1), bank.gather(everyone)[1], bank.trained, score)
        history.append((server.numpy().copy(), used.numpy().copy()))
    return history


def descend(v, k, strength=0.0, anchor=0.0):
    """K steps of client k on F_k + λ/2 (v − anchor)², in closed form."""
    best = (A[k] * B[k] + strength * anchor) / (A[k] + strength)
    return best + (1 - RATE * (A[k] + strength)) ** STEPS * (v - best)


COHORTS = [[0, 1, 2], [1, 3], [0, 2, 3], [1, 2, 3]]  # client 4 never takes part


@pytest.mark.parametrize("strength", [0.0, 0.5, 3.0])
def test_ditto_is_its_recursion_and_leaves_fedavg_alone(strength):
    server, own = np.full(D, 0.3), {}
    plain = federate(OwnModel(), COHORTS)
    for cohort, (found, used), (fedavg, same) in zip(
        COHORTS, federate(Ditto(strength), COHORTS), plain, strict=True
    ):
        own |= {k: descend(own.get(k, server), k, strength, server) for k in cohort}
        server = np.mean([descend(server, k) for k in cohort], axis=0)
        np.testing.assert_allclose(found, server, rtol=1e-12)
        assert np.array_equal(found, fedavg), "θ is FedAvg's, bit for bit"
        for k in range(CLIENTS):
            np.testing.assert_allclose(used[k], own.get(k, server), rtol=1e-12)
            assert np.array_equal(same[k], fedavg)


def test_ditto_ends_at_the_papers_optimum():
    """With a server at rest, v_k → argmin F_k + λ/2 ‖v − θ*‖² = (a b + λ θ*) / (a + λ)."""
    strength, cohort = 2.0, list(range(CLIENTS))
    server, used = federate(Ditto(strength), [cohort] * 150)[-1]
    for k in range(CLIENTS):
        best = (A[k] * B[k] + strength * server) / (A[k] + strength)
        np.testing.assert_allclose(used[k], best, rtol=1e-7)


@pytest.mark.parametrize("weight", [0.25, 0.5, 0.8])
def test_interpolation_is_its_recursion(weight):
    server, own = np.full(D, 0.3), {}
    for cohort, (found, used) in zip(
        COHORTS, federate(Interpolation(weight), COHORTS), strict=True
    ):
        own |= {k: descend(weight * own.get(k, server) + (1 - weight) * server, k) for k in cohort}
        server = np.mean([own[k] for k in cohort], axis=0)
        np.testing.assert_allclose(found, server, rtol=1e-12)
        for k in range(CLIENTS):
            expected = weight * own[k] + (1 - weight) * server if k in own else server
            np.testing.assert_allclose(used[k], expected, rtol=1e-12)


def test_interpolation_goes_from_fedavg_to_training_alone():
    plain = federate(OwnModel(), COHORTS)
    for (found, used), (fedavg, _) in zip(
        federate(Interpolation(0.0), COHORTS), plain, strict=True
    ):
        assert np.array_equal(found, fedavg)
        assert np.array_equal(used, np.tile(fedavg, (CLIENTS, 1)))
    full = [list(range(CLIENTS))] * 3
    alone = [np.full(D, 0.3)] * CLIENTS
    for _, used in federate(Interpolation(1.0), full):
        alone = [descend(v, k) for k, v in enumerate(alone)]
        np.testing.assert_allclose(used, alone, rtol=1e-12)


def test_the_learned_weight_is_the_best_of_the_grid():
    """Brute force, one client at a time; clients whose data agree with the server take 0."""
    generator = torch.Generator().manual_seed(3)
    own, downloaded, target = (
        torch.randn(7, D, generator=generator, dtype=torch.float64) for _ in range(3)
    )
    target[0], target[1] = downloaded[0], own[1]
    own[2] = downloaded[2]  # all mixes are equal: the smallest weight wins
    has = torch.tensor([True] * 6 + [False])

    def score(models):
        return (models - target).square().sum(1)

    found = Interpolation(None).models(downloaded, {"own": own}, has, score)
    weights = []
    for k in range(7):
        mine = own[k] if has[k] else downloaded[k]
        mixes = [a * mine + (1 - a) * downloaded[k] for a in GRID]
        losses = [float((mix - target[k]).square().sum()) for mix in mixes]
        weights.append(GRID[int(np.argmin(losses))])
        assert torch.allclose(found[k], mixes[int(np.argmin(losses))], rtol=1e-12)
    assert weights[0] == 0.0 and weights[1] == 1.0 and len(set(weights)) > 2
    assert torch.equal(found[2], downloaded[2]) and torch.equal(found[6], downloaded[6])


def test_a_loss_that_is_not_a_number_never_wins():
    own, downloaded = torch.ones(1, D).double(), torch.zeros(1, D).double()

    def score(models):
        return torch.where(models[:, 0] < 0.6, torch.nan, models[:, 0])

    found = Interpolation(None).models(downloaded, {"own": own}, torch.tensor([True]), score)
    assert torch.equal(found, 0.75 * own)


def test_a_weight_outside_the_unit_interval_is_refused():
    with pytest.raises(ValueError, match="^weight is 1.5, but must be at most 1$"):
        Interpolation(1.5)
    with pytest.raises(ValueError, match="^strength is -1, but must be at least 0$"):
        Ditto(-1)


def test_own_models_are_the_same_by_what_they_are():
    """Federations train in common only where theirs are."""
    assert OwnModel() == OwnModel() and Ditto(0.5) == Ditto(0.5) != Ditto(0.1)
    assert Interpolation(None) == Interpolation(None) != Interpolation(0.5)


# --- Beginning elsewhere than at the downloaded model ---------------------------------------------


def elsewhere(m=4):
    generator = torch.Generator().manual_seed(1)
    start, begin = (torch.randn(m, D, generator=generator, dtype=torch.float64) for _ in range(2))
    batches = [[np.array([k])] * (k + 1) for k in range(m)]
    zeros = {"control": torch.zeros(m, D).double()}
    return Clients(batches, start, start.new_zeros(m, 0), zeros, zeros, begin=begin)


def test_terms_refer_to_the_downloaded_model_wherever_training_begins():
    clients = elsewhere()
    work = LocalWork(Sgd(), RATE, 0.0, 0.0, 1e9, (Proximal(0.7), ControlVariates()), loss=loss)
    result = train_clients(Identity(), LAYOUT, SAMPLES, clients, work)
    for k in range(4):
        start, v = clients.start[k].numpy(), clients.begin[k].numpy()
        best = (A[k] * B[k] + 0.7 * start) / (A[k] + 0.7)
        expected = best + (1 - RATE * (A[k] + 0.7)) ** (k + 1) * (v - best)
        np.testing.assert_allclose(result.theta[k].numpy(), expected, rtol=1e-12)
        moved = (start - expected) / ((k + 1) * RATE)
        np.testing.assert_allclose(result.state["control"][k].numpy(), moved, rtol=1e-9)


def test_where_training_begins_goes_with_its_client():
    clients = elsewhere()
    work = LocalWork(Sgd(), RATE, 0.0, 0.0, 1e9, loss=loss)
    whole = train_clients(Identity(), LAYOUT, SAMPLES, clients, work)
    chosen = np.array([2, 0])
    part = train_clients(Identity(), LAYOUT, SAMPLES, clients[chosen], work)
    assert torch.allclose(part.theta, whole.theta[chosen], rtol=1e-14)
    parts = Passes(1, 1).train(Identity(), LAYOUT, SAMPLES, clients, work)
    assert torch.allclose(parts.theta, whole.theta, rtol=1e-14)
    plain = dataclasses.replace(clients[chosen], begin=None)
    joined = Clients.joined([plain, clients[np.array([1, 3])]])
    assert torch.equal(joined.begin, torch.cat([plain.start, clients.begin[[1, 3]]]))
    assert Clients.joined([plain, plain]).begin is None
