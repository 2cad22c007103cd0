"""Gradients, optimisers, losses, batches: what a client's step is made of."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from fedsdg.federation import micro_batches
from fedsdg.federation.batches import all_batches, draw_epochs
from fedsdg.federation.losses import CrossEntropy, Focal
from fedsdg.federation.micro_batches import MicroBatcher
from fedsdg.federation.optimisers import Adagrad, Adam, AdamW, Sgd
from fedsdg.federation.personalisation import (
    Apfl,
    DualPath,
    GatedHead,
    OwnHead,
    ResidualHead,
    Shared,
)
from fedsdg.federation.phases import SHARED, Phase
from fedsdg.federation.terms import (
    Curvature,
    GatePenalty,
    PersonalProximal,
    PrivatePenalty,
    Proximal,
)
from fedsdg.federation.training import Columns, Rows
from fedsdg.models import block_views, views
from tests.federation.small import CLASSES, federation, run, trained, vit

CLOSE = {"rtol": 1e-9, "atol": 1e-12}
#: Models with a private part and without, and how they train.
KINDS = [
    Shared(),
    DualPath(),
    DualPath(composition="factors", gate="layer"),
    DualPath(private_subspace="shared-a", gate="client"),
    OwnHead(),
    GatedHead(gate_samples="all"),
    ResidualHead(),
]


def of_vit(personalisation, **given):
    model, first, private = vit(**personalisation.adapters)
    return federation(model, first, private, personalisation=personalisation, **given)


# --- Terms ----------------------------------------------------------------------------------------


def random_rows(width=None):
    """Rows of three clients of FedSDG, of random numbers, with gradients of 0."""
    layout = vit(branch="dual")[0].layout
    d = layout.d
    draw = torch.Generator().manual_seed(5)

    def numbers(columns):
        return torch.randn(3, columns, generator=draw, dtype=torch.float64)

    theta, private = numbers(d), numbers(width or layout.d_private)
    vectors = ("control", "fisher", "fisher_theta")
    return Rows(
        theta=theta,
        private=private,
        theta_grad=torch.zeros_like(theta),
        private_grad=torch.zeros_like(private),
        start=numbers(d),
        kept={name: numbers(d) for name in vectors},
        received={name: numbers(d) for name in vectors},
        memory={},
        log_shares=None,
        columns=Columns.from_layout(layout),
    )


@pytest.mark.parametrize(
    "term",
    [
        GatePenalty(lambda1=0.3),
        PrivatePenalty(lambda2=0.2),
        PrivatePenalty(lambda2=0.2, private_norm="residual"),
        PrivatePenalty(lambda2=0.2, private_norm="b-only"),
        Proximal(mu=0.7),
        PersonalProximal(strength=0.7),
        Curvature(strength=0.4),
    ],
    ids=str,
)
def test_the_gradient_of_a_term_is_the_derivative_of_its_value(term):
    rows = random_rows(random_rows().theta.shape[1] if isinstance(term, PersonalProximal) else None)
    rows.theta.requires_grad_()
    rows.private.requires_grad_()
    value = term.value(rows)
    assert value.shape == (3,)
    slopes = torch.autograd.grad(value.sum(), [rows.theta, rows.private], allow_unused=True)
    with torch.no_grad():
        term.add_gradient(rows)
    for slope, given_ in zip(slopes, (rows.theta_grad, rows.private_grad), strict=True):
        expected = torch.zeros_like(given_) if slope is None else slope
        torch.testing.assert_close(given_, expected, rtol=1e-9, atol=1e-12)
    assert rows.theta_grad.any() or rows.private_grad.any()


def test_penalties_have_the_forms_of_equation_5():
    """λ₁ Σ σ(a) and λ₂ ‖θ_p‖² of factors alone; with `residual` λ₂ Σ ‖B_p A_p‖²."""
    rows = random_rows()
    named = views(rows.private, vit(branch="dual")[0].layout.private)
    gates = [value.sigmoid() for name, value in named.items() if name.endswith("_logit")]
    a = {n.split(".lora")[0]: v for n, v in named.items() if n.endswith("lora_A_private")}
    b = {n.split(".lora")[0]: v for n, v in named.items() if n.endswith("lora_B_private")}
    squares = sum(v.square().sum((1, 2)) for v in [*a.values(), *b.values()])
    products = sum((b[layer] @ a[layer]).square().sum((1, 2)) for layer in a)
    torch.testing.assert_close(GatePenalty(lambda1=0.3).value(rows), 0.3 * sum(gates), **CLOSE)
    torch.testing.assert_close(PrivatePenalty(lambda2=0.2).value(rows), 0.2 * squares, **CLOSE)
    residual = PrivatePenalty(lambda2=0.2, private_norm="residual").value(rows)
    torch.testing.assert_close(residual, 0.2 * products, **CLOSE)


def test_fedcurv_holds_to_each_of_the_other_clients():
    """λ Σ_s (θ − θ_s)ᵀ diag(I_s) (θ − θ_s) over the others, up to a constant."""
    rows = random_rows()
    fisher = torch.rand(3, *rows.theta.shape, dtype=torch.float64)
    models = torch.randn_like(fisher)  # [s, client, d]; the client itself is one of the three
    for name, sums in (("fisher", fisher), ("fisher_theta", fisher * models)):
        rows.received[name] = sums.sum(0)
        rows.kept[name] = sums[0]

    def objective(theta):
        return 0.4 * (fisher[1:] * (theta - models[1:]) ** 2).sum((0, 2))

    term = Curvature(strength=0.4)
    constant = objective(rows.theta) - term.value(rows)
    rows.theta.copy_(torch.randn_like(rows.theta))
    torch.testing.assert_close(objective(rows.theta) - term.value(rows), constant, **CLOSE)


@pytest.mark.parametrize("personalisation", KINDS, ids=str)
def test_a_step_goes_along_the_gradient_of_loss_and_terms(personalisation):
    """One batch, plain SGD: θ − η ∇(cross-entropy + terms), by autograd through the model."""
    terms = () if isinstance(personalisation, DualPath) else (Proximal(mu=0.3),)
    setup = of_vit(personalisation, terms=terms, epochs=1, batch_size=None, clients=3)
    phase = Phase(1)
    tasks, _ = trained(setup)
    results = setup.batcher.train(setup, setup.layout, tasks, (phase,), "here")
    for k in range(3):
        batch = torch.from_numpy(np.concatenate(tasks.batches[k][0]))
        rows = [tasks.start[k : k + 1].clone(), tasks.private[k : k + 1].clone()]
        rows = [row.requires_grad_() for row in rows]
        named = block_views(rows[0], setup.layout.communicated) | block_views(
            rows[1], setup.layout.private
        )
        scores = setup.model.logits(setup.samples.images[batch], [len(batch)], named)
        loss = cross_entropy(scores, setup.samples.labels[batch])
        for name, value in named.items():
            if name.endswith("_private"):
                loss = loss + 1e-4 * value.square().sum() * bool(setup.columns.factors.any())
            if name.endswith("lambda_k_logit") and isinstance(personalisation, DualPath):
                loss = loss + 1e-4 * value.sigmoid().sum()
        slopes = torch.autograd.grad(loss, rows, allow_unused=True)
        for new, row, slope in zip(
            (results.theta[k], results.private[k]), rows, slopes, strict=True
        ):
            if slope is not None:
                expected = (row - 0.1 * slope).detach()[0]
                torch.testing.assert_close(new, expected, rtol=1e-7, atol=1e-9)


def test_what_rests_does_not_shorten_the_step_of_what_moves():
    moved = []
    for lambda2 in (0.0, 1e6):
        setup = of_vit(DualPath(lambda2=lambda2), epochs=1, clip_norm=0.05)
        tasks, _ = trained(setup)
        phases = (Phase(1, turns=(SHARED,)),)
        moved.append(setup.batcher.train(setup, setup.layout, tasks, phases, "here"))
    assert torch.equal(moved[0].theta, moved[1].theta)
    assert torch.equal(moved[1].private, tasks.private)


# --- Optimisers and losses ------------------------------------------------------------------------

TORCH = {
    "adam": (Adam(beta1=0.8), lambda p: torch.optim.Adam(p, lr=0.03, betas=(0.8, 0.999))),
    "adamw": (AdamW(weight_decay=0.2), lambda p: torch.optim.AdamW(p, 0.03, weight_decay=0.2)),
    "sgd": (Sgd(), lambda p: torch.optim.SGD(p, 0.03)),
    "nesterov": (
        Sgd(momentum=0.9, nesterov=True, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, 0.03, 0.9, weight_decay=0.1, nesterov=True),
    ),
    "adagrad": (Adagrad(), lambda p: torch.optim.Adagrad(p, 0.03)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", TORCH)
def test_each_row_moves_as_by_an_optimiser_of_torch_with_its_own_steps(name, dtype):
    ours, theirs = TORCH[name]
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 7, generator=draw).to(dtype)
    alone = [row.clone().requires_grad_() for row in rows]
    optimisers = [theirs([row]) for row in alone]
    memory = {key: torch.zeros_like(rows) for key in ours.memory}
    counts = torch.zeros(3, 1, dtype=torch.float64)
    for active in (3, 3, 2, 1, 2):
        slopes = torch.randn(3, 7, generator=draw).to(dtype)
        now = {key: value[:active] for key, value in memory.items()}
        counts[:active] += 1
        ours.move(rows[:active], slopes[:active], 0.03, now, counts[:active])
        for row, slope, optimiser in list(zip(alone, slopes, optimisers, strict=True))[:active]:
            row.grad = slope
            optimiser.step()
    expected = torch.stack([row.detach() for row in alone])
    torch.testing.assert_close(
        rows, expected, rtol=1e-5 if dtype == torch.float32 else 1e-10, atol=0
    )


@given(st.integers(1, 9), st.sampled_from([0.0, 0.5, 2.0]), st.floats(0, 1))
@settings(max_examples=30)
def test_losses_by_their_formulas(samples, gamma, smoothing):
    draw = torch.Generator().manual_seed(samples)
    logits = torch.randn(samples, CLASSES, generator=draw, dtype=torch.float64)
    labels = torch.randint(CLASSES, (samples,), generator=draw)
    p = logits.softmax(1)
    right = p[torch.arange(samples), labels]
    torch.testing.assert_close(
        Focal(gamma=gamma)(logits, labels), -((1 - right) ** gamma) * right.log()
    )
    q = torch.full_like(p, smoothing / CLASSES)
    q[torch.arange(samples), labels] += 1 - smoothing
    torch.testing.assert_close(
        CrossEntropy(label_smoothing=smoothing)(logits, labels), -(q * p.log()).sum(1)
    )


def test_a_class_of_weight_2_counts_as_if_its_samples_were_there_twice():
    weights = (1.0, 2.0, 1.0, 3.0)
    given_ = {"epochs": 1, "batch_size": None, "clients": 2}
    setup = federation(loss=CrossEntropy(class_weights=weights), **given_)
    tasks, results = trained(setup)
    for k, (epochs, theta) in enumerate(zip(tasks.batches, results.theta, strict=True)):
        shard = torch.from_numpy(epochs[0][0])
        labels = setup.samples.labels[shard]
        shard = shard.repeat_interleave(torch.tensor(weights).long()[labels])
        layer = torch.nn.Linear(64, CLASSES, dtype=torch.float64)
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
        scores = layer(setup.samples.images[shard].flatten(1))
        loss = cross_entropy(scores, setup.samples.labels[shard])
        loss.backward()
        slope = torch.cat([layer.weight.grad.flatten(), layer.bias.grad])
        torch.testing.assert_close(theta, -0.1 * slope, **CLOSE)
        assert results.loss[k] == pytest.approx(loss.item())


# --- Batches and passes ---------------------------------------------------------------------------


@given(st.integers(1, 40), st.none() | st.integers(1, 50), st.integers(1, 4))
def test_an_epoch_has_every_sample_once_in_batches_of_equal_size_but_the_last(n, size, epochs):
    indices = np.arange(100, 100 + n)
    drawn = draw_epochs(indices, size, epochs, np.random.default_rng(n))
    assert len(drawn) == epochs
    for batches in drawn:
        assert sorted(np.concatenate(batches)) == list(indices)
        assert {len(batch) for batch in batches[:-1]} <= {size}
        assert 0 < len(batches[-1]) <= (size or n)


@pytest.mark.parametrize("personalisation", [*KINDS, Apfl(), GatedHead()], ids=str)
def test_a_client_does_not_depend_on_the_clients_beside_it(personalisation):
    """Alone, in another order, or in passes of two: the same numbers up to rounding."""
    if personalisation == Apfl():
        setup = federation(personalisation=personalisation, optimiser=Adam())
    else:
        setup = of_vit(personalisation, optimiser=Adam(), eta=0.01)
    tasks, together = trained(setup)
    order = np.array([4, 1, 5, 0])
    common = (setup.layout, tasks.take(order), setup.phases, "here")
    for most in (1, 2, 6):
        some = MicroBatcher(most).train(setup, *common)
        for name in ("theta", "private"):
            expected = getattr(together, name)[torch.from_numpy(order)]
            torch.testing.assert_close(getattr(some, name), expected, rtol=1e-9, atol=1e-12)
        for name, expected in {"loss": together.loss, **together.counts}.items():
            np.testing.assert_allclose({"loss": some.loss, **some.counts}[name], expected[order])


def test_when_memory_runs_out_half_as_many_clients_train_together(monkeypatch, capsys):
    setup = federation()
    expected = run(setup).theta
    whole, sizes = micro_batches.train, []

    def short_of_memory(setup, layout, tasks, *rest):
        sizes.append(len(tasks))
        if len(tasks) > 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return whole(setup, layout, tasks, *rest)

    monkeypatch.setattr(micro_batches, "train", short_of_memory)
    torch.testing.assert_close(run(federation()).theta, expected, **CLOSE)
    assert sizes[0] == 6 and max(sizes[3:]) <= 2
    assert "half" in capsys.readouterr().err


def test_counts_of_steps_and_samples():
    setup = federation(epochs=3, batch_size=4)
    tasks, results = trained(setup)
    batches = [all_batches(epochs) for epochs in tasks.batches]
    counts = results.counts
    assert counts["steps"].tolist() == [len(own) for own in batches]
    assert counts["samples"].tolist() == [sum(map(len, own)) for own in batches]
    assert not counts["personal"].any() and not counts["measured"].any()
    _, apfl = trained(federation(personalisation=Apfl(), epochs=3, batch_size=4))
    assert (apfl.counts["steps"] == 2 * counts["steps"]).all()
    assert (apfl.counts["personal"] == counts["steps"]).all()
