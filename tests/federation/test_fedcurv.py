"""FedCurv: per-sample gradients by brute force and in closed form, its term, and quadratics."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, softmax

from fedsdg.federation import fisher
from fedsdg.federation.fisher import diagonal_fisher
from fedsdg.federation.local_work import LocalWork, Samples
from fedsdg.federation.losses.cross_entropy import CrossEntropy
from fedsdg.federation.objectives.curvature import Curvature
from fedsdg.federation.optimisers.sgd import Sgd
from fedsdg.federation.step_rows import PrivateColumns, Rows
from fedsdg.models.parameters import Layout, ParameterSpec, views
from tests.federation.cohort import train_cohort

NOTHING = torch.zeros(0, 0, dtype=torch.float64)


class Linear:
    """Scores X_k W_kᵀ, so that with cross-entropy a client is a softmax regression."""

    def logits(self, images, counts, parameters):
        owner = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        return torch.einsum("ni,nci->nc", images, parameters["w"][owner])


class Identity:
    """Predicts its parameter for every sample: the loss makes it a quadratic."""

    def logits(self, images, counts, parameters):
        return parameters["w"].repeat_interleave(torch.tensor(counts), dim=0)


def quadratic(curvature):
    """ℓ(θ; x) = ½ Σ_i a_i (θ_i − x_i)², so ∇ℓ = a (θ − x) and one sample is a row of x."""

    def make(points):
        def loss(prediction, label, reduction):
            return 0.5 * (curvature * (prediction - points[label]).square()).sum(1)

        return loss

    return make


# --- Squared per-sample gradients -----------------------------------------------------------------


@pytest.mark.parametrize("branch", ["none", "dual"])
@pytest.mark.parametrize("most", [1, 5, 128])
def test_fisher_equals_autograd_sample_by_sample(setting, branch, most, monkeypatch):
    monkeypatch.setattr(fisher, "MOST", most)
    s = setting(branch=branch)
    generator = torch.Generator().manual_seed(4)

    def rows(values):
        noise = torch.randn(3, len(values), generator=generator, dtype=torch.float64)
        return values + 0.1 * noise

    theta, private = rows(s.theta), rows(s.private)
    shards = [np.array([7]), np.arange(20, 31), np.array([3, 90, 41, 5])]
    found = diagonal_fisher(s.model, s.layout, s.samples, shards, theta, private, cross_entropy)
    for k, shard in enumerate(shards):
        squares = torch.zeros(s.layout.d, dtype=torch.float64)
        for index in shard:
            own = theta[k : k + 1].clone().requires_grad_()
            parameters = views(own, s.layout.communicated)
            parameters |= views(private[k : k + 1], s.layout.private)
            logits = s.model.logits(s.samples.images[[index]], [1], parameters)
            cross_entropy(logits, s.samples.labels[[index]]).backward()
            squares += own.grad[0].square()
        assert torch.allclose(found[k], squares / len(shard), rtol=1e-10, atol=1e-18)
    assert not theta.requires_grad and bool((found >= 0).all())


def test_fisher_of_softmax_regression_in_closed_form():
    """∇_W ℓ = (p − y) xᵀ, so I = mean (p − y)² (x²)ᵀ; several samples a client, not their mean."""
    classes, inputs, n = 3, 4, 12
    layout = Layout((ParameterSpec("w", (classes, inputs), "shared"),), ())
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, inputs, generator=generator, dtype=torch.float64)
    y = torch.randint(0, classes, (n,), generator=generator)
    theta = torch.randn(2, classes * inputs, generator=generator, dtype=torch.float64)
    shards = [np.arange(5), np.arange(5, n)]
    found = diagonal_fisher(
        Linear(), layout, Samples(x, y), shards, theta, torch.zeros(2, 0).double(), cross_entropy
    )
    for k, shard in enumerate(shards):
        probability = softmax(x[shard] @ theta[k].view(classes, inputs).T, dim=1)
        error = (probability - torch.eye(classes, dtype=torch.float64)[y[shard]]).square()
        expected = torch.einsum("nc,ni->ci", error, x[shard].square()) / len(shard)
        assert torch.allclose(found[k], expected.flatten(), rtol=1e-12)
        batch = (
            torch.einsum(
                "nc,ni->ci",
                probability - torch.eye(classes, dtype=torch.float64)[y[shard]],
                x[shard],
            ).square()
            / len(shard) ** 2
        )
        assert not torch.allclose(found[k], batch.flatten(), rtol=0.1), "not a batch's gradient"


def test_a_sample_that_the_loss_weighs_counts_as_so_many_samples(setting):
    """Class c with weight c + 1, against a shard that repeats its samples c + 1 times."""
    s = setting()
    theta, private = s.theta[None] + 0.1, s.private[None]
    shard = np.arange(30)
    repeated = np.repeat(shard, s.samples.labels.numpy()[shard] + 1)
    common = (s.model, s.layout, s.samples)
    weighed = CrossEntropy(class_weights=(1.0, 2.0, 3.0, 4.0))
    found = diagonal_fisher(*common, [shard], theta, private, weighed)
    expected = diagonal_fisher(*common, [repeated], theta, private, cross_entropy)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-18)


def test_a_client_without_samples_is_refused():
    layout = Layout((ParameterSpec("w", (1,), "shared"),), ())
    samples = Samples(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64))
    empty = [np.array([0]), np.empty(0, dtype=np.int64)]
    with pytest.raises(ValueError, match="row 1 has no training sample"):
        diagonal_fisher(
            Identity(), layout, samples, empty, torch.zeros(2, 1), torch.zeros(2, 0), cross_entropy
        )


def test_nothing_shared_has_no_fisher(setting):
    s = setting(local=True)
    found = diagonal_fisher(
        s.model, s.layout, s.samples, [np.arange(3)], s.theta[None], s.private[None], cross_entropy
    )
    assert found.shape == (1, 0)


# --- The term -------------------------------------------------------------------------------------


def of_a_cohort(clients=4, d=6, seed=1):
    """I_s ≥ 0 and θ_s [clients, d] of a cohort, and rows whose clients were all in it."""
    generator = torch.Generator().manual_seed(seed)

    def draw():
        return torch.randn(clients, d, generator=generator, dtype=torch.float64)

    information, ends, theta = draw().square(), draw(), draw()
    sums = {"fisher": information.sum(0), "fisher_theta": (information * ends).sum(0)}
    rows = Rows(
        theta, torch.zeros_like(theta), draw(), NOTHING, NOTHING,
        PrivateColumns(torch.zeros(0), torch.zeros(0, dtype=torch.int64), ()),
        {"fisher": information, "fisher_theta": information * ends},
        {name: value.expand(clients, -1) for name, value in sums.items()},
    )  # fmt: skip
    return rows, information, ends


def penalty(theta, j, information, ends):
    """Σ_{s≠j} (θ − θ_s)ᵀ diag(I_s) (θ − θ_s), written as it stands in the paper."""
    others = [s for s in range(len(ends)) if s != j]
    return sum(((theta - ends[s]) ** 2 * information[s]).sum() for s in others)


def test_value_is_the_papers_up_to_a_constant_and_gradient_its_derivative():
    rows, information, ends = of_a_cohort()
    term = Curvature(0.3)
    term.add_gradient(rows)
    values = term.value(rows)
    for j in range(4):
        theta = rows.theta[j].clone().requires_grad_()
        own = 0.3 * penalty(theta, j, information, ends)
        own.backward()
        assert torch.allclose(rows.theta_grad[j], theta.grad, rtol=1e-10, atol=1e-12)
        constant = 0.3 * penalty(torch.zeros(6).double(), j, information, ends)
        assert float(values[j] + constant) == pytest.approx(float(own.detach()), rel=1e-10)


def test_who_was_not_in_the_last_cohort_has_nothing_to_take_off():
    rows, information, ends = of_a_cohort()
    away = Rows(
        rows.theta, torch.zeros_like(rows.theta), rows.start, NOTHING, NOTHING, rows.columns,
        {name: torch.zeros_like(value) for name, value in rows.state.items()}, rows.received,
    )  # fmt: skip
    Curvature(0.5).add_gradient(away)
    for j in range(4):
        expected = sum(information[s] * (rows.theta[j] - ends[s]) for s in range(4))
        assert torch.allclose(away.theta_grad[j], expected, rtol=1e-10)
    assert Curvature.fleeting == Curvature.keeps, "own terms are of the last round alone"


def test_alone_in_the_last_cohort_is_no_penalty():
    rows, *_ = of_a_cohort(clients=1)
    Curvature(0.7).add_gradient(rows)
    assert not rows.theta_grad.any()


# --- Quadratic clients ----------------------------------------------------------------------------


def test_fedcurv_on_quadratics_in_closed_form():
    """F_j = ½ mean_i Σ a (θ − x_i)²: the local optimum is (a b_j + 2λ J) / (a + 2λ I), entry by
    entry, with b_j the mean of the points, and I_j = a² (var_j + (θ_j − b_j)²) there.

    Rounds of local training to convergence equal that recursion, written in numpy.
    """
    clients, each, d, strength = 3, 5, 2, 0.4
    generator = torch.Generator().manual_seed(7)
    points = torch.randn(clients * each, d, generator=generator, dtype=torch.float64)
    curvature = torch.tensor([1.0, 2.5], dtype=torch.float64)
    layout = Layout((ParameterSpec("w", (d,), "shared"),), ())
    samples = Samples(torch.zeros(len(points), 1), torch.arange(len(points)))
    loss = quadratic(curvature)(points)
    shards = list(np.arange(len(points)).reshape(clients, each))
    empty = torch.zeros(clients, 0).double()
    work = LocalWork(Sgd(), 0.05, 0.0, 0.0, 1e9, (Curvature(strength),), loss=loss)

    x, a = points.numpy().reshape(clients, each, d), curvature.numpy()
    b, variance = x.mean(1), x.var(1)
    theirs, information, ends = np.full(d, 0.3), np.zeros((clients, d)), np.zeros((clients, d))

    server = torch.full((d,), 0.3, dtype=torch.float64)
    kept = {name: torch.zeros(clients, d).double() for name in Curvature.keeps}
    for _ in range(3):
        received = {name: value.sum(0) for name, value in kept.items()}
        local = train_cohort(
            Identity(), layout, samples, [[shard] * 800 for shard in shards],
            server.expand(clients, -1), empty, work, state=kept, received=received,
        )  # fmt: skip
        found = diagonal_fisher(Identity(), layout, samples, shards, local.theta, empty, loss)
        kept = {"fisher": found, "fisher_theta": found * local.theta}
        server = local.theta.mean(0)

        total, pulled = information.sum(0), (information * ends).sum(0)
        ends = (a * b + 2 * strength * (pulled - information * ends)) / (
            a + 2 * strength * (total - information)
        )
        information = a**2 * (variance + (ends - b) ** 2)
        theirs = ends.mean(0)
        np.testing.assert_allclose(local.theta.numpy(), ends, rtol=1e-8)
        np.testing.assert_allclose(found.numpy(), information, rtol=1e-7)
        np.testing.assert_allclose(server.numpy(), theirs, rtol=1e-8)
    assert np.abs(ends - b).max() > 0.01, "the penalty moves the optimum"


def test_one_step_in_closed_form():
    """θ − η (a (θ − b) + 2λ (I θ − J)), from one full batch."""
    rows, information, ends = of_a_cohort(clients=2, d=2)
    curvature = torch.tensor([1.5, 0.5], dtype=torch.float64)
    points = torch.tensor([[1.0, -1.0], [0.0, 2.0]], dtype=torch.float64)
    layout = Layout((ParameterSpec("w", (2,), "shared"),), ())
    work = LocalWork(
        Sgd(), 0.1, 0.0, 0.0, 1e9, (Curvature(0.2),), loss=quadratic(curvature)(points)
    )
    local = train_cohort(
        Identity(), layout, Samples(torch.zeros(2, 1), torch.arange(2)),
        [[np.array([0])], [np.array([1])]], rows.theta, torch.zeros(2, 0).double(), work,
        state=rows.state, received=dict(rows.received),
    )  # fmt: skip
    for j in range(2):
        other, theta = 1 - j, rows.theta[j]
        gradient = curvature * (theta - points[j])
        gradient = gradient + 2 * 0.2 * information[other] * (theta - ends[other])
        assert torch.allclose(local.theta[j], theta - 0.1 * gradient, rtol=1e-10)
