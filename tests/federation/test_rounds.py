"""Rounds against their formulas, written out in plain torch."""

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.scaffold import Scaffold
from fedsdg.federation import rounds
from fedsdg.federation.batches import all_batches
from fedsdg.federation.optimisers import Adam, Sgd
from fedsdg.federation.personalisation import (
    Apfl,
    Ditto,
    DualPath,
    Interpolate,
    OwnHead,
    PrivateHead,
    Shared,
)
from fedsdg.federation.server import server_updates
from fedsdg.federation.terms import ControlVariates, Proximal
from fedsdg.models import block_views, views
from tests.federation.small import (
    CLASSES,
    Points,
    federation,
    half_square,
    run,
    timm_model,
    trained,
    vit,
    with_shards,
)

CLOSE = {"rtol": 1e-9, "atol": 1e-12}


def batches_of(tasks):
    return [all_batches(epochs) for epochs in tasks.batches]


# --- FedAvg, FedProx and SCAFFOLD -----------------------------------------------------------------


@pytest.mark.parametrize("clip", [0.05, 1e9])
@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adam])
def test_a_round_of_fedavg_written_out(optimiser, clip):
    ours = {torch.optim.SGD: Sgd(), torch.optim.Adam: Adam()}[optimiser]
    setup = federation(cohort=4, optimiser=ours, clip_norm=clip, eta=0.03, rounds=1)
    samples, (tasks, _) = setup.samples, trained(setup)
    updates = []
    for batches in batches_of(tasks):
        layer = torch.nn.Linear(64, CLASSES, dtype=torch.float64)
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
        steps = optimiser(layer.parameters(), lr=0.03)
        for batch in map(torch.from_numpy, batches):
            steps.zero_grad()
            scores = layer(samples.images[batch].flatten(1))
            cross_entropy(scores, samples.labels[batch]).backward()
            torch.nn.utils.clip_grad_norm_(layer.parameters(), clip)
            steps.step()
        updates.append(torch.cat([layer.weight.detach().flatten(), layer.bias.detach()]))
    sizes = torch.from_numpy(setup.sizes[tasks.clients]).double()
    assert len(set(map(len, batches_of(tasks)))) > 1  # clients take unequal numbers of steps
    expected = (sizes[:, None] * torch.stack(updates)).sum(0) / sizes.sum()
    torch.testing.assert_close(run(setup).theta, expected, **CLOSE)


def points_of(setup):
    """The mean of each client's samples."""
    return [setup.samples.images[torch.from_numpy(shard)].mean(0) for shard in setup.data.train]


def federation_of_points(**given):
    images = torch.from_numpy(np.random.default_rng(1).normal(size=(200, CLASSES)))
    given = {"loss": half_square, "batch_size": None, "images": images, **given}
    return federation(Points(), **given)


def test_a_client_of_fedprox_goes_to_its_closed_form():
    """min ½‖w − c‖² + μ/2 ‖w − θ‖² is at (c + μ θ) / (1 + μ); the way there is geometric."""
    mu, eta, epochs = 1.5, 0.2, 7
    first = torch.arange(4.0, dtype=torch.float64)
    setup = federation_of_points(first=first, eta=eta, epochs=epochs, terms=(Proximal(mu=mu),))
    tasks, results = trained(setup)
    for client, theta in zip(tasks.clients, results.theta, strict=True):
        best = (points_of(setup)[client] + mu * first) / (1 + mu)
        expected = best + (1 - eta * (1 + mu)) ** epochs * (first - best)
        torch.testing.assert_close(theta, expected, **CLOSE)


def test_rounds_of_scaffold_in_closed_form():
    """A step leads along g − c_k + c; after K steps from x to y, c_k += −c + (x − y) / (K η)."""
    eta, steps = 0.1, 3
    setup = federation_of_points(
        rule=Scaffold(server_rate=0.5),
        terms=(ControlVariates(),),
        eta=eta,
        epochs=steps,
        rounds=4,
        cohort=3,
    )
    server, own = torch.zeros(4).double(), torch.zeros(6, 4).double()
    theta = torch.zeros(4).double()
    done = run(setup)
    for t in range(1, 5):
        cohort = sorted(r["client"] for r in done.clients if r["round"] == t and r["participated"])
        changes, updates = [], []
        for client in cohort:
            w = theta.clone()
            for _ in range(steps):
                w -= eta * (w - points_of(setup)[client] - own[client] + server)
            changes.append((theta - w) / (steps * eta) - server)
            updates.append(w - theta)
            own[client] += changes[-1]
        theta = theta + 0.5 * torch.stack(updates).mean(0)
        server = server + torch.stack(changes).sum(0) / 6
    torch.testing.assert_close(done.theta, theta, **CLOSE)
    torch.testing.assert_close(done.store.read("control", np.arange(6)), own, **CLOSE)


def test_control_variates_count_the_steps_of_what_is_sent():
    """c_k after the first round is the mean gradient of θ: (x − y) / (K η)."""
    personalisation = OwnHead(head_epochs=2)
    model, first, private = vit(**personalisation.adapters)
    given = {"rule": Scaffold(), "terms": (ControlVariates(),), "personalisation": personalisation}
    setup = federation(model, first, private, epochs=1, rounds=1, eta=0.05, **given)
    _, results = trained(setup)
    steps = torch.from_numpy(setup.batches_per_epoch(np.arange(6)))[:, None]
    expected = (first - results.theta) / (steps * 0.05)
    torch.testing.assert_close(results.kept["control"], expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("personalisation", [Ditto(), Apfl(), Interpolate()])
def test_the_server_trains_as_if_there_were_no_private_model(personalisation):
    made = []
    for one in (Shared(), personalisation):
        model, first, private = vit(**one.adapters)
        parts = {"benchmark_images": 20}
        setup = federation(model, first, private, personalisation=one, parts=parts)
        made.append(server_updates(setup, setup.initial()[0], 1))
    assert made[0].any()
    torch.testing.assert_close(made[1], made[0], **CLOSE)


def test_the_server_trains_a_head_of_its_own_where_every_client_has_one():
    model, first, private = vit(**PrivateHead.adapters)
    parts = {"model": model, "first": first, "private": torch.zeros_like(private)}
    setup = federation(personalisation=PrivateHead(), parts={"benchmark_images": 20}, **parts)
    assert server_updates(setup, setup.initial()[0], 1).any()  # Behind a head of 0 nothing learns.


def test_equal_clients_are_one_client():
    """The server's model is that of each client, and all alignments are 1."""
    setup = federation(rule=Alignment(), batch_size=None, rounds=1)
    setup = with_shards(setup, [setup.data.train[0]] * setup.num_clients)
    _, results = trained(setup)
    done = run(setup)
    torch.testing.assert_close(results.theta, done.theta.expand(6, -1), **CLOSE)
    assert {round(row["alignment"], 5) for row in done.clients} == {1.0}
    assert done.rounds[0]["drift"] < 1e-6


# --- FedSDG ---------------------------------------------------------------------------------------

RATES = {"shared": 0.01, "private": 0.02, "gate": 0.3}


def written_out_client(model, layout, rows, samples, batches, lambda1, lambda2, clip):
    """FedSDG's client (Eq. 3-8) on timm's own transformer, whose weights are merged by hand."""
    named = {}
    for row, specs in zip(rows, (layout.communicated, layout.private), strict=True):
        for name, value in views(row[None], specs).items():
            named[name] = value[0].clone().requires_grad_()
    groups = {spec.name: spec.group for spec in (*layout.communicated, *layout.private)}
    transformer = timm_model()
    frozen = transformer.state_dict()
    optimiser = torch.optim.Adam(
        [{"params": [value], "lr": RATES[groups[name]]} for name, value in named.items()]
    )
    layers = [name.removesuffix(".lora_A") for name in named if name.endswith(".lora_A")]
    for batch in map(torch.from_numpy, batches):
        weights, penalty = dict(frozen), 0.0
        for layer in layers:
            block = ".".join(layer.split(".")[:2])
            gate = torch.sigmoid(named[f"{block}.lambda_k_logit"])
            shared = named[f"{layer}.lora_B"] @ named[f"{layer}.lora_A"]
            a, b = named[f"{layer}.lora_A_private"], named[f"{layer}.lora_B_private"]
            weights[f"{layer}.weight"] = frozen[f"{layer}.weight"] + 2.0 * (shared + gate * b @ a)
            penalty += lambda2 * (a.square().sum() + b.square().sum())
        gates = [torch.sigmoid(v) for name, v in named.items() if groups[name] == "gate"]
        tokens = functional_call(transformer, weights, samples.images[batch])
        scores = tokens @ named["head.weight"].T + named["head.bias"]
        loss = cross_entropy(scores, samples.labels[batch]) + penalty + lambda1 * sum(gates)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(named.values()), clip)
        optimiser.step()
    return [
        torch.cat([named[spec.name].detach().flatten() for spec in specs])
        for specs in (layout.communicated, layout.private)
    ]


def test_a_round_of_fedsdg_written_out():
    personalisation = DualPath(lambda1=0.05, lambda2=0.03, gate_init=-0.4)
    model, first, private = vit(**personalisation.adapters)
    setup = federation(
        model,
        first,
        private,
        rule=Alignment(),
        personalisation=personalisation,
        optimiser=Adam(),
        eta_g=RATES["shared"],
        eta_p=RATES["private"],
        eta_m=RATES["gate"],
        clip_norm=0.8,
        clients=4,
        rounds=1,
    )
    tasks, _ = trained(setup)
    rows = [
        written_out_client(
            model, setup.layout, (first, private), setup.samples, batches, 0.05, 0.03, 0.8
        )
        for batches in batches_of(tasks)
    ]
    updates = torch.stack([theta - first for theta, _ in rows])
    total = updates.sum(0)
    alignment = torch.clamp(updates @ total / updates.norm(dim=1) / total.norm(), min=0)
    expected = first + alignment @ updates / alignment.sum()
    done = run(setup)
    torch.testing.assert_close(done.theta, expected, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(
        done.private, torch.stack([p for _, p in rows]), rtol=1e-6, atol=1e-8
    )


@pytest.mark.parametrize("m", [0.0, 1.0])
def test_with_a_gate_of_0_nothing_private_counts_and_with_1_all_of_it(m):
    personalisation = DualPath(gate_fixed=m, lambda2=0.0)
    model, first, private = vit(**personalisation.adapters)
    setup = federation(model, first, private, personalisation=personalisation, rounds=2, eta=0.3)
    done = run(setup)
    plain, first, _ = vit()
    common = run(federation(plain, first, rounds=2, eta=0.3))
    moved = (done.private - private).abs().max() > 1e-3
    assert moved == (m == 1)
    assert torch.allclose(done.theta, common.theta, **CLOSE) == (m == 0)
    images = setup.samples.images[:7]
    own = {**block_views(done.theta[None], setup.layout.communicated)}
    own |= block_views(done.private[:1], setup.layout.private)
    both = [model.logits(images, [7], own, private=private) for private in (True, False)]
    assert torch.allclose(*both, rtol=1e-12, atol=1e-12) == (m == 0)


# --- Models of the clients' own ---------------------------------------------------------------


def rounds_of(setup):
    """The server and the private rows after each round."""
    server, store = setup.initial()
    for after, _ in rounds.run(setup, server, store):
        yield after.models[0], store.read("private", np.arange(setup.num_clients))


@pytest.mark.parametrize(
    ("shared", "own", "penalties", "least"),
    [
        (Sgd(), "sgd", "inside", 1e-9),
        (Adam(), "sgd", "inside", 1e-3),
        (Sgd(), "training", "decoupled", 1e-9),
        (Adam(), "sgd", "decoupled", 1e-3),
    ],
)
def test_ditto_s_own_model_goes_to_its_closed_form_and_stays_there(shared, own, penalties, least):
    """v_k = (c_k + λ θ) / (1 + λ), in each of the last 120 of 240 rounds."""
    strength = 1.5
    setup = federation_of_points(
        personalisation=Ditto(strength=strength, own_optimiser=own, penalties=penalties),
        optimiser=shared,
        rounds=240,
        schedule={"evaluate_every": 240},
    )
    centres = torch.stack(points_of(setup))
    gaps = [
        float((own - (centres + strength * theta) / (1 + strength)).abs().max())
        for theta, own in rounds_of(setup)
    ]
    assert gaps[0] > 0.1 and max(gaps[120:]) < least


def test_a_decoupled_pull_is_a_step_of_its_own():
    """v <- v − η λ (v − θ), then the optimiser's step along the gradient of the loss alone."""
    eta, strength = 0.1, 0.7
    personalisation = Ditto(strength=strength, penalties="decoupled")
    first = torch.arange(4.0, dtype=torch.float64)
    setup = federation_of_points(
        first=first, eta=eta, epochs=2, rounds=1, personalisation=personalisation
    )
    for client, own in enumerate(run(setup).private):
        v = first.clone()
        for _ in range(2):
            slope = v - points_of(setup)[client]
            v = v - eta * strength * (v - first)
            v = v - eta * slope
        torch.testing.assert_close(own, v, **CLOSE)


def test_two_rounds_of_apfl_written_out():
    """v goes along a ∇f(a v + (1 − a) w), then w along ∇f(w), batch by batch."""
    a, eta = 0.3, 0.2
    setup = federation_of_points(personalisation=Apfl(weight=a), eta=eta, epochs=2, rounds=2)
    w = torch.zeros(4).double()
    own = torch.zeros(6, 4).double()
    for _ in range(2):
        found = []
        for client, centre in enumerate(points_of(setup)):
            mine = w.clone()
            for _ in range(2):
                own[client] -= eta * a * (a * own[client] + (1 - a) * mine - centre)
                mine -= eta * (mine - centre)
            found.append(mine)
        w = torch.from_numpy(setup.sizes / setup.sizes.sum()) @ torch.stack(found)
    done = run(setup)
    torch.testing.assert_close(done.private, own, **CLOSE)
    torch.testing.assert_close(done.theta, w, **CLOSE)


def test_two_rounds_of_the_running_mix_written_out():
    """Training begins at a v + (1 − a) θ; its end is v, and is sent."""
    a, eta = 0.3, 0.2
    setup = federation_of_points(personalisation=Interpolate(weight=a), eta=eta, epochs=2, rounds=2)
    theta, own = torch.zeros(4).double(), None
    for _ in range(2):
        begin = theta.expand(6, -1) if own is None else a * own + (1 - a) * theta
        centres = torch.stack(points_of(setup))
        own = centres + (1 - eta) ** 2 * (begin - centres)
        theta = theta + torch.from_numpy(setup.sizes / setup.sizes.sum()) @ (own - theta)
    done = run(setup)
    torch.testing.assert_close(done.private, own, **CLOSE)
    torch.testing.assert_close(done.theta, theta, **CLOSE)


def test_fedrep_trains_the_head_alone_and_then_the_rest_alone():
    personalisation = OwnHead(head_epochs=2)
    model, first, private = vit(**personalisation.adapters)
    setup = federation(
        model, first, private, personalisation=personalisation, epochs=1, rounds=1, clients=3
    )
    tasks, results = trained(setup)
    for k, epochs in enumerate(tasks.batches):
        rows = [first.clone().requires_grad_(), private.clone().requires_grad_()]
        for moving, batches in ((1, all_batches(epochs[:2])), (0, epochs[2])):
            for batch in map(torch.from_numpy, batches):
                named = block_views(rows[0][None], setup.layout.communicated)
                named |= block_views(rows[1][None], setup.layout.private)
                scores = model.logits(setup.samples.images[batch], [len(batch)], named)
                loss = cross_entropy(scores, setup.samples.labels[batch])
                (slope,) = torch.autograd.grad(loss, rows[moving])
                rows[moving] = (rows[moving] - 0.1 * slope).detach().requires_grad_()
        torch.testing.assert_close(results.theta[k], rows[0].detach(), **CLOSE)
        torch.testing.assert_close(results.private[k], rows[1].detach(), **CLOSE)
