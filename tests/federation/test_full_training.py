"""All parameters of the small CNN on the client axis: local training, aggregation, evaluation."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.types import Context
from fedsdg.federation.evaluation import global_metrics, personal_accuracies
from fedsdg.federation.local_work import LocalWork, Samples
from fedsdg.federation.objectives.control_variates import ControlVariates
from fedsdg.federation.objectives.proximal import Proximal
from fedsdg.federation.optimisers.adam import Adam
from fedsdg.federation.optimisers.sgd import Sgd
from fedsdg.federation.passes import bytes_of_a_client
from fedsdg.models.parameters import views
from fedsdg.models.small_cnn import CnnArchitecture, SmallCnn, initial_values, make_layout
from fedsdg.rng import stream
from tests.federation.cohort import train_cohort

CLASSES = 4
SIZES = [3, 17, 8, 1, 16]
NO_CLIPPING = 1e9


class Full:
    """A model, its start and random samples; with `local` all of it is private."""

    def __init__(self, dtype=torch.float64, samples=120, local=False, size=8):
        self.layout = make_layout(CnnArchitecture(size, 1), CLASSES, local=local)
        self.model = SmallCnn(self.layout)
        theta, private = initial_values(self.layout, stream("init", 0))
        self.theta, self.private = theta.to(dtype), private.to(dtype)
        generator = torch.Generator().manual_seed(1)
        self.samples = Samples(
            torch.randn(samples, 1, size, size, generator=generator, dtype=dtype),
            torch.randint(0, CLASSES, (samples,), generator=generator),
        )

    def train(self, batches, work, start=None, private=None, **more):
        rows = (
            row.expand(len(batches), -1) if row.dim() == 1 else row
            for row in (
                self.theta if start is None else start,
                self.private if private is None else private,
            )
        )
        return train_cohort(self.model, self.layout, self.samples, batches, *rows, work, **more)


def network(row):
    """torch's own layers with the weights of one row [d]."""
    made = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, CLASSES),
    ).to(row.dtype)
    nn.utils.vector_to_parameters(row.clone(), made.parameters())
    return made


def flat(module):
    return torch.cat([value.detach().flatten() for value in module.parameters()])


def relative(a, b):
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("optimiser, rate", [(Adam(), 3e-3), (Sgd(), 0.1)])
@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-9), (torch.float32, 1e-3)])
def test_cohort_equals_one_at_a_time(batches_of, local, optimiser, rate, dtype, bound):
    full = Full(dtype, local=local)
    work = LocalWork(optimiser, rate, rate, rate, 1.0, (Proximal(0.1),))
    batches = batches_of(SIZES)
    together = full.train(batches, work)
    for k, own in enumerate(batches):
        alone = full.train([own], work)
        for ours, theirs, start in (
            (together.theta[k], alone.theta[0], full.theta),
            (together.private[k], alone.private[0], full.private),
        ):
            if len(start):
                assert relative(ours - start, theirs - start) < bound
        assert together.loss[k] == pytest.approx(alone.loss[0], rel=1e-4)


@pytest.mark.parametrize("optimiser, rate", [(Adam(), 3e-3), (Sgd(), 0.1)])
def test_a_client_is_trained_as_torch_trains_its_own_layers(batches_of, optimiser, rate):
    full = Full()
    batches = batches_of([17, 9])
    ours = full.train(batches, LocalWork(optimiser, rate, rate, rate, 0.5))
    for k, own in enumerate(batches):
        theirs = network(full.theta)
        made = {Adam(): torch.optim.Adam, Sgd(): torch.optim.SGD}[optimiser]
        mover = made(theirs.parameters(), lr=rate)
        for batch in own:
            mover.zero_grad()
            cross_entropy(theirs(full.samples.images[batch]), full.samples.labels[batch]).backward()
            nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
            mover.step()
        assert relative(ours.theta[k] - full.theta, flat(theirs) - full.theta) < 1e-6


def test_one_full_batch_step_a_client_is_one_step_on_all_the_data():
    """FedAvg by samples with one full-batch SGD step: θ − η Σ (n_k / n) g_k = θ − η g (FedSGD)."""
    full, rate = Full(), 0.3
    edges = np.cumsum([0, *SIZES])
    batches = [[np.arange(edges[k], edges[k + 1])] for k in range(len(SIZES))]
    local = full.train(batches, LocalWork(Sgd(), rate, rate, rate, NO_CLIPPING))
    sizes = np.array(SIZES)
    context = Context(
        round=1,
        clients=np.arange(len(SIZES)),
        num_clients=len(SIZES),
        num_samples=sizes,
        num_batches=np.ones_like(sizes),
        client_samples=sizes,
    )
    rule = Mean(weights="samples")
    update = local.theta - full.theta
    step = rule({"update": update}, context, rule.init(full.layout.d, sizes)).steps[0]
    pooled = network(full.theta)
    everything = np.arange(sizes.sum())
    loss = cross_entropy(pooled(full.samples.images[everything]), full.samples.labels[everything])
    loss.backward()
    gradient = torch.cat([value.grad.flatten() for value in pooled.parameters()])
    torch.testing.assert_close(step, -rate * gradient, rtol=0, atol=1e-12)


def test_scaffolds_correction_is_none_for_clients_that_are_alike(batches_of):
    """Option II with c_i = c is plain SGD, and afterwards c_i⁺ is the mean gradient."""
    full, rate = Full(), 0.1
    own = batches_of([16])[0]
    control = torch.randn(full.layout.d, dtype=torch.float64)
    work = LocalWork(Sgd(), rate, rate, rate, NO_CLIPPING, (ControlVariates(),))
    ours = full.train(
        [own, own],
        work,
        state={"control": control.expand(2, -1).clone()},
        received={"control": control},
    )
    theirs = full.train([own], LocalWork(Sgd(), rate, rate, rate, NO_CLIPPING))
    torch.testing.assert_close(ours.theta[0], theirs.theta[0], rtol=0, atol=1e-12)
    mean = (full.theta - theirs.theta[0]) / (len(own) * rate)
    torch.testing.assert_close(ours.state["control"][1], mean, rtol=0, atol=1e-9)


def test_accuracies_are_those_of_torchs_layers(batches_of):
    """Clients of very different sizes, so that chunks cut through them (1,024 samples a chunk)."""
    full = Full(torch.float32, samples=2600)
    rows = torch.stack([full.theta * scale for scale in (1.0, -1.0, 2.0, 0.5)])
    edges = [0, 3, 1500, 1501, 2300]
    shards = [np.arange(edges[k], edges[k + 1]) for k in range(4)]
    val, test = [own[:1] for own in shards], [own[1:] if len(own) > 1 else own for own in shards]
    got = personal_accuracies(
        full.model,
        full.layout,
        full.samples,
        val,
        test,
        rows,
        lambda clients: full.private.expand(len(clients), -1),
        torch.tensor([True, False, True, True]),
    )
    labels = full.samples.labels
    for k in range(4):
        with torch.no_grad():
            right = network(rows[k])(full.samples.images).argmax(1) == labels
        assert got.test[k] == pytest.approx(float(right[test[k]].float().mean()), abs=1e-6)
    everything = np.arange(2600)
    accuracy, loss = global_metrics(
        full.model, full.layout, full.samples, everything, full.theta, full.private
    )
    with torch.no_grad():
        scores = network(full.theta)(full.samples.images)
    assert accuracy == pytest.approx(float((scores.argmax(1) == labels).float().mean()), abs=1e-6)
    assert loss == pytest.approx(float(cross_entropy(scores, labels)), rel=1e-5)


def test_the_memory_of_a_client_is_about_its_activations():
    """Kept per image: the input, both convolutions before and after pooling, and the hidden layer.

    The estimate may not fall below that, and not reach ten times as much, or passes would be far
    too large or far too small.
    """
    full = Full(torch.float32, samples=40, size=28)
    batch = 20
    need = bytes_of_a_client(
        full.model, full.layout, full.samples, batch, full.theta[None], full.private[None]
    )
    kept = 784 + 16 * (784 + 196) + 32 * (196 + 49) + 64
    assert 4 * batch * kept < need - 8 * 4 * full.layout.d < 10 * 4 * batch * kept


def test_it_learns(batches_of):
    """Two classes that a convolution tells apart: stripes along, stripes across."""
    full = Full(torch.float32)
    images, labels = full.samples.images.clone(), full.samples.labels.clone() % 2
    stripes = (torch.arange(8) % 2 * 2 - 1).float()
    for k in range(len(images)):
        images[k, 0] += 2 * (stripes[:, None] if labels[k] else stripes[None])
    full.samples = Samples(images, labels)
    work = LocalWork(Adam(), 3e-3, 3e-3, 3e-3, 1.0)
    trained = full.train(batches_of([60], batch_size=10, epochs=4), work)
    with torch.no_grad():
        parameters = views(trained.theta, full.layout.communicated)
        scores = full.model.logits(images[60:], [60], parameters)
    assert float((scores.argmax(1) == labels[60:]).float().mean()) > 0.95
