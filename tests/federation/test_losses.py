"""Losses: those of torch, and closed forms; each client's batch as torch would average it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedsdg.experiment.examining.choices import LOSS
from fedsdg.experiment.examining.findings import OK, examine
from fedsdg.federation.clients import Clients
from fedsdg.federation.local_training import train_clients
from fedsdg.federation.local_work import LocalWork, Samples
from fedsdg.federation.losses.cross_entropy import CrossEntropy
from fedsdg.federation.losses.focal import Focal
from fedsdg.federation.objectives.proximal import Proximal
from fedsdg.federation.optimisers.sgd import Sgd
from fedsdg.federation.stopping import Inexactness
from fedsdg.models.parameters import Layout, ParameterSpec

CLASSES, FEATURES = 3, 4
LAYOUT = Layout((ParameterSpec("w", (CLASSES, FEATURES), "shared"),), ())
WEIGHTS = (0.2, 1.0, 5.0)
#: Uneven: the last batches are smaller, and one client has three steps.
BATCHES = [[np.arange(5), np.arange(5, 7)], [np.arange(7, 9)], [np.arange(9, 20)] * 3]


class Linear:
    """Scores W_k x of client k."""

    def logits(self, images, counts, parameters):
        weights = parameters["w"].repeat_interleave(torch.tensor(counts), 0)
        return torch.einsum("bcf,bf->bc", weights, images)


def samples():
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(20, FEATURES, generator=generator, dtype=torch.float64)
    return Samples(images, torch.randint(0, CLASSES, (20,), generator=generator))


def trained(loss):
    start = torch.linspace(-1, 1, CLASSES * FEATURES, dtype=torch.float64).expand(3, -1)
    work = LocalWork(Sgd(), 0.1, 0.1, 0.1, 1e9, loss=loss)
    clients = Clients(BATCHES, start, start.new_zeros(3, 0))
    return start, train_clients(Linear(), LAYOUT, samples(), clients, work)


def by_torch(start, batches, loss):
    """One client: a step of SGD down the loss of every batch, as torch averages it."""
    s, w = samples(), start.clone().view(CLASSES, FEATURES).requires_grad_()
    seen = []
    for batch in batches:
        value = loss(s.images[batch] @ w.T, s.labels[batch])
        (slope,) = torch.autograd.grad(value, w)
        w = (w - 0.1 * slope).detach().requires_grad_()
        seen.append(float(value.detach()))
    return w.detach().flatten(), np.mean(seen)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"label_smoothing": 0.3},
        {"class_weights": WEIGHTS},
        {"label_smoothing": 0.1, "class_weights": WEIGHTS},
    ],
)
def test_a_clients_steps_are_those_of_torchs_cross_entropy(options):
    """The mean over a batch with class weights is torch's: it divides by the weights."""
    start, ours = trained(CrossEntropy(**options))
    weights = options.get("class_weights")
    weight = None if weights is None else torch.tensor(weights, dtype=torch.float64)

    def loss(scores, labels):
        smoothing = options.get("label_smoothing", 0.0)
        return cross_entropy(scores, labels, weight=weight, label_smoothing=smoothing)

    for k, batches in enumerate(BATCHES):
        theta, mean = by_torch(start[k], batches, loss)
        assert torch.allclose(ours.theta[k], theta, rtol=1e-10, atol=1e-12)
        assert ours.loss[k] == pytest.approx(mean, rel=1e-10)


def test_a_stopping_rule_looks_at_the_same_loss():
    """γ just above and just below what one epoch reaches, by torch's weighted mean and the
    proximal term, which would weigh more or less beside a mean that divides by the samples."""
    weight, mu = torch.tensor(WEIGHTS, dtype=torch.float64), 2.0
    start = torch.linspace(-1, 1, CLASSES * FEATURES, dtype=torch.float64)

    def norm(w, index):
        s, w = samples(), w.clone().requires_grad_()
        scores = s.images[index] @ w.view(CLASSES, FEATURES).T
        h = cross_entropy(scores, s.labels[index], weight=weight)
        (h + mu / 2 * (w - start).square().sum()).backward()
        return float(w.grad.norm())

    loss = CrossEntropy(class_weights=WEIGHTS)
    work = LocalWork(Sgd(), 0.1, 0.1, 0.1, 1e9, (Proximal(mu),), loss=loss)

    def train(work, epochs, gamma=None):
        clients = Clients([BATCHES[0] * epochs], start[None], start.new_zeros(1, 0), gamma=gamma)
        return train_clients(Linear(), LAYOUT, samples(), clients, work)

    everything = np.arange(7)
    ratio = norm(train(work, 1).theta[0], everything) / norm(start, everything)
    assert 0 < ratio < 1
    stopping = replace(work, stopping=Inexactness((0.5,), 2))
    for gamma, steps in ((ratio * (1 + 1e-9), 2), (ratio * (1 - 1e-9), 4)):
        assert train(stopping, 2, np.array([gamma])).steps.tolist() == [steps]


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 5.0])
def test_focal_loss_in_closed_form(gamma):
    generator = torch.Generator().manual_seed(3)
    logits = 3 * torch.randn(50, CLASSES, generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    labels = torch.randint(0, CLASSES, (50,), generator=generator)
    p = torch.softmax(logits, 1)[torch.arange(50), labels]
    expected = -((1 - p) ** gamma) * p.log()
    each = Focal(gamma)(logits, labels, reduction="none")
    assert torch.allclose(each, expected, rtol=1e-9, atol=1e-15)
    slopes = [torch.autograd.grad(x.sum(), logits, retain_graph=True)[0] for x in (each, expected)]
    assert torch.allclose(*slopes, rtol=1e-8, atol=1e-12)
    if gamma == 0:
        assert torch.allclose(each, cross_entropy(logits, labels, reduction="none"), rtol=1e-12)


@pytest.mark.parametrize("loss", [CrossEntropy(), Focal()], ids=repr)
def test_a_loss_of_a_batch_is_the_mean_or_the_sum_of_its_samples(loss):
    logits = torch.randn(7, CLASSES, generator=torch.Generator().manual_seed(4))
    labels = torch.arange(7) % CLASSES
    each = loss(logits, labels)
    torch.testing.assert_close(loss(logits, labels, reduction="mean"), each.sum() / 7)
    torch.testing.assert_close(loss(logits, labels, reduction="sum"), each.sum())


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_focal_loss_has_a_gradient_where_a_client_is_certain(gamma, dtype):
    """Right beyond what the dtype can tell from 1, and wrong beyond what it can tell from 0."""
    logits = torch.tensor([[500.0, 0, 0], [0, 500.0, 0], [9e30, 0, 0]], dtype=dtype)
    logits.requires_grad_()
    each = Focal(gamma)(logits, torch.tensor([0, 0, 0]))
    each.sum().backward()
    assert torch.isfinite(logits.grad).all()
    assert each.tolist() == pytest.approx([0.0, 500.0, 0.0])


@pytest.mark.parametrize(
    "loss", [CrossEntropy(), CrossEntropy(0.3, WEIGHTS), Focal(), Focal(0.5)], ids=repr
)
def test_all_that_is_asked_of_other_peoples_losses(loss):
    assert {one.outcome for one in examine("loss", loss, LOSS)} == {OK}


def test_weights_for_other_classes_are_refused():
    with pytest.raises(ValueError, match="has 3 class_weights, but the data have 10 classes; give"):
        CrossEntropy(class_weights=WEIGHTS).require_classes(10)
    CrossEntropy(class_weights=WEIGHTS).require_classes(3)
    Focal().require_classes(10)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: CrossEntropy(label_smoothing=1.5), "^label_smoothing is 1.5, but must be at most"),
        (lambda: CrossEntropy(class_weights=[1, 0]), r"^class_weights\[1\] is 0, but must be at l"),
        (lambda: CrossEntropy(class_weights=2), "^class_weights is 2, but must be a list of numb"),
        (lambda: Focal(-1), "^gamma is -1, but must be at least 0$"),
    ],
)
def test_what_a_loss_cannot_be_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()
