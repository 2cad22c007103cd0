"""γ-inexact local training: closed forms on quadratics, brute force on a real model."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedsdg.federation.branches import gate_penalty, private_penalty
from fedsdg.federation.clients import Clients
from fedsdg.federation.local_training import train_clients
from fedsdg.federation.local_work import LocalWork, Samples
from fedsdg.federation.objectives.control_variates import ControlVariates
from fedsdg.federation.objectives.gate_penalty import GatePenalty
from fedsdg.federation.objectives.private_penalty import PrivatePenalty
from fedsdg.federation.objectives.proximal import Proximal
from fedsdg.federation.optimisers.adam import Adam
from fedsdg.federation.optimisers.sgd import Sgd
from fedsdg.federation.passes import Passes
from fedsdg.federation.step_rows import PrivateColumns
from fedsdg.federation.steps import by_epochs
from fedsdg.federation.stopping import Inexactness
from fedsdg.models.parameters import Layout, ParameterSpec, views
from fedsdg.rng import stream

LAYOUT = Layout((ParameterSpec("w", (1,), "shared"),), ())
SIZES = [3, 17, 8, 1, 16]
ADAM = Adam()


class Identity:
    """Predicts its parameter for every sample: the loss makes it a quadratic."""

    def logits(self, images, counts, parameters):
        return parameters["w"][:, 0].repeat_interleave(torch.tensor(counts))


def quadratics(curvature, centre):
    a, b = (torch.tensor(values, dtype=torch.float64) for values in (curvature, centre))

    def loss(prediction, label, reduction):
        return a[label] / 2 * (prediction - b[label]) ** 2

    return Samples(torch.zeros(len(a), 1), torch.arange(len(a))), loss


def train_quadratics(
    gamma, curvature, centre, *, mu, rate, most=10, terms=(), start=0.7, budget=None
):
    """One sample a client, one step an epoch: gradient descent on h."""
    samples, loss = quadratics(curvature, centre)
    m = len(curvature)
    work = LocalWork(Sgd(), rate, rate, rate, 1e9, (Proximal(mu), *terms), loss=loss,
                     stopping=Inexactness((0.5,), most))  # fmt: skip
    zeros = {name: torch.zeros(m, 1).double() for term in terms for name in term.keeps}
    clients = Clients(
        [[np.array([k])] * most for k in range(m)],
        torch.full((m, 1), start, dtype=torch.float64), torch.zeros(m, 0).double(), zeros, zeros,
        gamma=np.array(gamma), budget=budget,
    )  # fmt: skip
    return train_clients(Identity(), LAYOUT, samples, clients, work)


@pytest.mark.parametrize("mu", [0.0, 0.3])
@pytest.mark.parametrize("most", [1, 4, 10])
def test_epochs_on_quadratics_in_closed_form(mu, most):
    """h' shrinks by r = 1 − η (a + μ) each epoch, whatever the centre: stop at the first rᵉ ≤ γ."""
    curvature = [0.2, 1.0, 3.0, 5.0, 0.5, 8.0]
    gamma = [0.9, 0.7, 0.5, 0.01, 0.5, 1.0]
    centre = [1.0, -2.0, 0.3, 4.0, -1.0, 2.0]
    rate = 0.05
    result = train_quadratics(gamma, curvature, centre, mu=mu, rate=rate, most=most)
    for k, (a, g, b) in enumerate(zip(curvature, gamma, centre, strict=True)):
        r = 1 - rate * (a + mu)
        epochs = next((e for e in range(1, most) if r**e <= g), most)
        best = (a * b + mu * 0.7) / (a + mu)
        assert result.steps[k] == epochs
        assert float(result.theta[k]) == pytest.approx(best + r**epochs * (0.7 - best), rel=1e-12)
        # The start is looked at, and every epoch but the last that is allowed.
        assert result.samples[k] == epochs + 1 + min(epochs, most - 1)


@pytest.mark.parametrize("mu", [0.0, 0.3])
def test_steps_and_measurements_draw_from_one_budget(mu):
    """Against a loop in plain Python: an epoch is one step here, and a measurement costs as much.

    With three steps no measurement could be followed by a step, so none is made.
    """
    rate, gamma, most, budget = 0.05, 0.8, 10, np.arange(26)
    curvature = np.resize([0.2, 1.0, 3.0], 26).tolist()
    result = train_quadratics(
        [gamma] * 26, curvature, [1.0] * 26, mu=mu, rate=rate, most=most, budget=budget[:, None]
    )
    for k, (a, n) in enumerate(zip(curvature, budget.tolist(), strict=True)):
        shrinks, steps, measured = 1 - rate * (a + mu), 0, int(n > 3)
        while steps < most and steps + measured < n:
            steps += 1
            if n > 3 and steps < most and steps + measured + 1 < n:
                measured += 1
                if shrinks**steps <= gamma:
                    break
        assert (result.steps[k], result.measured[k]) == (steps, measured)
        assert result.gradients[k] == result.samples[k] == steps + measured <= n
        best = (a * 1.0 + mu * 0.7) / (a + mu)
        assert float(result.theta[k]) == pytest.approx(best + shrinks**steps * (0.7 - best))
    assert result.steps.tolist()[:4] == [0, 1, 2, 3]


def test_gamma_one_stops_after_one_epoch_and_gamma_zero_never():
    curvature, centre = [1.0, 1.0], [2.0, 2.0]
    result = train_quadratics([1.0, 0.0], curvature, centre, mu=0.1, rate=0.1)
    assert result.steps.tolist() == [1, 10]


def test_a_client_at_its_optimum_stops_after_its_first_epoch():
    """‖∇h‖ = 0 at the start: 0 ≤ γ · 0 holds at once, but every client trains one epoch."""
    result = train_quadratics([0.5], [1.0], [0.7], mu=0.1, rate=0.1)
    assert result.steps.tolist() == [1]
    assert float(result.theta[0]) == pytest.approx(0.7, abs=1e-9)


def test_scaffold_divides_by_the_steps_that_were_taken():
    """c_i⁺ = (x − y) / (K η) with c = c_i = 0: the mean gradient over the client's own K steps."""
    curvature, rate = [1.0, 4.0], 0.1
    result = train_quadratics(
        [0.5, 0.5], curvature, [2.0, 2.0], mu=0.0, rate=rate, terms=(ControlVariates(),)
    )
    assert result.steps.tolist() == [7, 2]  # 0.9⁷ = 0.478, 0.6² = 0.36
    for k in range(2):
        expected = (0.7 - float(result.theta[k])) / (int(result.steps[k]) * rate)
        assert float(result.state["control"][k]) == pytest.approx(expected, rel=1e-12)


# --- A real model: batches, Adam, both rows, penalties --------------------------------------------

TERMS = (GatePenalty(1e-2), PrivatePenalty(1e-2), Proximal(0.5))


def real(setting, batches_of, gamma, optimiser=ADAM, most=5):
    s = setting(branch="dual")
    m = len(SIZES)
    work = LocalWork(optimiser, 3e-3, 3e-3, 5e-3, 1.0, TERMS, stopping=Inexactness((0.5,), most))
    clients = Clients(
        batches_of(SIZES, epochs=most),
        s.theta.expand(m, -1), s.private.expand(m, -1), gamma=np.array(gamma),
    )  # fmt: skip
    return s, clients, work


def norm_by_autograd(s, indices, theta, private):
    """‖∇h‖ of one client, the whole of Eq. 5 with the proximal term, by one backward pass."""
    theta = theta[None].clone().requires_grad_()
    private = private[None].clone().requires_grad_()
    parameters = {**views(theta, s.layout.communicated), **views(private, s.layout.private)}
    logits = s.model.logits(s.samples.images[indices], [len(indices)], parameters)
    columns = PrivateColumns.of(s.layout)
    h = cross_entropy(logits, s.samples.labels[indices])
    h = h + 0.01 * gate_penalty(private, columns)[0] + 0.01 * private_penalty(private, columns)[0]
    h = h + 0.25 * (theta - s.theta).square().sum()
    h.backward()
    return float(torch.cat([theta.grad[0], private.grad[0]]).norm())


@pytest.mark.parametrize("optimiser", [Adam(), Sgd()])
def test_every_client_stops_where_brute_force_says(setting, batches_of, optimiser):
    """Plain training for e epochs, the full gradient by autograd, the first e that is inexact."""
    most = 5
    rate = {Adam(): 3e-3, Sgd(): 0.3}[optimiser]
    s, clients, work = real(setting, batches_of, [0.0] * 5, optimiser, most)
    work = dataclasses.replace(work, eta_g=rate, eta_p=rate)
    plain = dataclasses.replace(work, stopping=None)
    path, ratios = [], np.zeros((most, len(SIZES)))
    for epochs in range(1, most + 1):
        some = [[*itertools.chain(*by_epochs(own)[:epochs])] for own in clients.batches]
        path.append(
            train_clients(s.model, s.layout, s.samples, dataclasses.replace(clients, batches=some),
                          plain)
        )  # fmt: skip
        for k, own in enumerate(clients.batches):
            indices = np.sort(np.concatenate(by_epochs(own)[0]))
            begun = norm_by_autograd(s, indices, s.theta, s.private)
            now = norm_by_autograd(s, indices, path[-1].theta[k], path[-1].private[k])
            ratios[epochs - 1, k] = now / begun
    # Just above what a client reaches after one, two, ... epochs; never, for the last.
    gamma = np.array([ratios[k, k] * (1 + 1e-6) for k in range(4)] + [0.0])
    expected = [next((e for e in range(1, most) if ratios[e - 1, k] <= gamma[k]), most)
                for k in range(len(SIZES))]  # fmt: skip
    assert len(set(expected)) > 1, "clients differ in when they stop"
    result = train_clients(
        s.model, s.layout, s.samples, dataclasses.replace(clients, gamma=gamma), work
    )
    for k, epochs in enumerate(expected):
        per_epoch = -(-SIZES[k] // 4)
        assert result.steps[k] == epochs * per_epoch
        assert result.samples[k] == SIZES[k] * (epochs + 1 + min(epochs, most - 1))
        end = path[epochs - 1]
        for ours, theirs, start in (
            (result.theta[k], end.theta[k], s.theta),
            (result.private[k], end.private[k], s.private),
        ):
            assert float((ours - theirs).norm()) <= 1e-9 * float((theirs - start).norm())
        assert result.loss[k] == pytest.approx(end.loss[k], rel=1e-12)


@pytest.mark.parametrize("optimiser", [Adam(), Sgd()])
def test_where_gamma_is_never_reached_it_is_plain_fedprox(setting, batches_of, optimiser):
    s, clients, work = real(setting, batches_of, [0.0] * 5, optimiser)
    work = dataclasses.replace(work, trace_every=2)
    ours = train_clients(s.model, s.layout, s.samples, clients, work)
    plain = train_clients(
        s.model, s.layout, s.samples, clients, dataclasses.replace(work, stopping=None)
    )
    assert torch.allclose(ours.theta, plain.theta, rtol=0, atol=1e-12)
    assert torch.allclose(ours.private, plain.private, rtol=0, atol=1e-12)
    assert ours.steps.tolist() == plain.steps.tolist()
    for client in range(len(SIZES)):  # the same records, but in the order of the epochs
        mine, theirs = (
            sorted((r for r in run.trace if r["client"] == client), key=lambda r: r["step"])
            for run in (ours, plain)
        )
        assert len(mine) == len(theirs)
        for a, b in zip(mine, theirs, strict=True):
            assert a == pytest.approx(b, rel=1e-9, abs=1e-12)


def test_stopping_does_not_depend_on_the_clients_per_pass(setting, batches_of):
    s, clients, work = real(setting, batches_of, [0.9, 0.8, 0.95, 0.5, 0.99])
    whole = train_clients(s.model, s.layout, s.samples, clients, work)
    assert len({int(n) for n in whole.steps}) > 2
    for number in (1, 2, 3):
        parts = Passes(4, number).train(s.model, s.layout, s.samples, clients, work)
        assert torch.allclose(parts.theta, whole.theta, rtol=0, atol=1e-11)
        assert torch.allclose(parts.private, whole.private, rtol=0, atol=1e-11)
        assert parts.steps.tolist() == whole.steps.tolist()
        assert parts.samples.tolist() == whole.samples.tolist()


def test_a_client_whose_time_runs_out_in_mid_epoch(setting, batches_of):
    """Batches cut short: the part of an epoch is trained, and nothing is looked at after it."""
    s, clients, work = real(setting, batches_of, [0.0] * 5)
    cut = [own[: len(own) // 2 + 1] for own in clients.batches]
    short = dataclasses.replace(clients, batches=cut)
    ours = train_clients(s.model, s.layout, s.samples, short, work)
    plain = train_clients(
        s.model, s.layout, s.samples, short, dataclasses.replace(work, stopping=None)
    )
    assert ours.steps.tolist() == [len(own) for own in cut]
    assert torch.allclose(ours.theta, plain.theta, rtol=0, atol=1e-12)


def test_an_error_names_the_step_of_the_client(setting, batches_of):
    """The loss is spoilt in the second epoch: by then 5 steps are done."""
    s, clients, work = real(setting, batches_of, [0.0] * 5, most=2)
    calls = []

    def loss(logits, labels, reduction):
        calls.append(len(labels))
        # Epoch 1 has 5 steps, the gradients at its start and end 5 each; then the second epoch.
        return cross_entropy(logits, labels, reduction=reduction) * (
            float("nan") if len(calls) == 16 else 1.0
        )

    with pytest.raises(FloatingPointError, match=r"row 0: .* at local step 2;"):
        train_clients(s.model, s.layout, s.samples, clients, dataclasses.replace(work, loss=loss))


# --- The rule itself ------------------------------------------------------------------------------


def test_gammas_are_drawn_once_and_equally_often():
    rule = Inexactness()
    drawn = rule.draw(30_000, stream("stopping", 3))
    assert np.array_equal(drawn, rule.draw(30_000, stream("stopping", 3)))
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [0.5, 0.7, 0.9]
    # Three standard deviations of a binomial count of 30,000 at 1/3.
    assert np.all(np.abs(counts - 10_000) < 3 * np.sqrt(30_000 * (1 / 3) * (2 / 3)))


def test_epochs_are_cut_where_every_sample_was_drawn_once_more(batches_of):
    for own, size in zip(batches_of([10, 7, 4, 1], epochs=3), [10, 7, 4, 1], strict=True):
        parts = by_epochs(own)
        assert len(parts) == 3
        assert [*itertools.chain(*parts)] == own
        for part in parts:
            assert sorted(np.concatenate(part).tolist()) == sorted(
                np.unique(np.concatenate(own)).tolist()
            )
            assert sum(map(len, part)) == size


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": ()}, r"^gamma is \(\), but must be a list of numbers, or a mapping of low and"),
        ({"gamma": (0.5, 1.2)}, r"^gamma\[1\] is 1.2, but must be at most 1$"),
        ({"gamma": {"low": 0.5, "high": -1}}, "^gamma.high is -1, but must be at least 0$"),
        ({"gamma": {"low": 0.9, "high": 0.5}}, "^gamma: low = 0.9 is above high = 0.5; exchange"),
        ({"most_epochs": 0}, "^most_epochs is 0, but must be at least 1$"),
        ({"gamma_by": "luck"}, "^gamma_by is 'luck', but must be one of chance, speed$"),
    ],
)
def test_impossible_rules_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Inexactness(**options)


def test_a_missing_gamma_and_a_second_schedule_are_refused(setting, batches_of):
    s, clients, work = real(setting, batches_of, [0.5] * 5)
    with pytest.raises(ValueError, match="every client's gamma"):
        train_clients(s.model, s.layout, s.samples, dataclasses.replace(clients, gamma=None), work)
    with pytest.raises(ValueError, match="cannot be combined"):
        dataclasses.replace(work, private_first=1)
    assert work.epochs(2) == 5 and dataclasses.replace(work, stopping=None).epochs(2) == 2


# --- Whose γ it is --------------------------------------------------------------------------------


def test_gammas_lie_between_two_ends():
    """Uniform: mean (low + high) / 2, standard deviation (high − low) / √12."""
    rule = Inexactness({"low": 0.2, "high": 0.6})
    drawn = rule.draw(30_000, stream("stopping", 3))
    assert np.array_equal(drawn, rule.draw(30_000, stream("stopping", 3)))
    assert drawn.min() >= 0.2 and drawn.max() <= 0.6
    error = 0.4 / np.sqrt(12) / np.sqrt(30_000)
    assert abs(drawn.mean() - 0.4) < 4 * error
    assert drawn.std() == pytest.approx(0.4 / np.sqrt(12), rel=0.01)


def test_the_slower_a_client_the_looser_its_gamma():
    """Speeds that double are equally far apart, so γ falls by equal steps, or by thirds."""
    speeds, draw = np.array([2.0, 16.0, 1.0, 4.0, 8.0]), stream("stopping", 0)
    between = Inexactness({"low": 0.5, "high": 0.9}, gamma_by="speed").draw(5, draw, speeds)
    assert between == pytest.approx([0.8, 0.5, 0.9, 0.7, 0.6], abs=1e-12)
    some = Inexactness((0.9, 0.5, 0.7), gamma_by="speed").draw(5, draw, speeds)
    assert some.tolist() == [0.9, 0.5, 0.9, 0.7, 0.5]
    shifted = Inexactness((0.9, 0.5, 0.7), gamma_by="speed").draw(5, draw, 7 * speeds)
    assert np.array_equal(some, shifted)


@pytest.mark.parametrize("speeds", [None, np.full(4, 3.0)])
def test_without_slow_clients_gamma_cannot_follow_speed(speeds):
    rule = Inexactness(gamma_by="speed")
    with pytest.raises(ValueError, match="they have none or all the same; set conditions.compute"):
        rule.draw(4, stream("stopping", 0), speeds)
