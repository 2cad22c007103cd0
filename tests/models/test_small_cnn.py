"""The small CNN against torch's own layers, client by client, in both ways of computing it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedsdg import models
from fedsdg.models import small_cnn as module
from tests.models.conftest import CLASSES, gradients, named

SMALL = models.CnnArchitecture(8, 1)


def torchs_network(size, channels, row):
    """The same network of torch's layers, with the weights of one row [d]."""
    network = nn.Sequential(
        *(nn.Conv2d(channels, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(32 * (size // 4) ** 2, 64), nn.ReLU(), nn.Linear(64, CLASSES)),
    ).double()
    nn.utils.vector_to_parameters(row, network.parameters())
    return network


@pytest.mark.parametrize("way", ["_client_by_client", "_by_vmap"])
@pytest.mark.parametrize(("size", "channels"), [(8, 1), (9, 1), (32, 3)])
@pytest.mark.parametrize("counts", [[4, 4, 4], [5, 0, 6, 1]])
def test_every_client_is_torchs_own_network(monkeypatch, way, size, channels, counts):
    model = models.SmallCnn(models.CnnArchitecture(size, channels), CLASSES)
    monkeypatch.setattr(module, "_client_by_client", getattr(module, way))
    draws, labels = np.random.default_rng(0), torch.arange(12) % CLASSES
    rows = torch.stack([model.initial_values(draws)[0] for _ in counts]).double()
    images = torch.from_numpy(draws.normal(size=(12, channels, size, size)))

    def ours(parameters):
        weights = model.effective_weights(parameters)
        return model.losses(images, labels, torch.ones(12), counts, weights)

    losses, (slopes, _) = gradients(model, (rows, rows[:, :0]), ours)
    for k, (x, y) in enumerate(zip(images.split(counts), labels.split(counts), strict=True)):
        network = torchs_network(size, channels, rows[k])
        expected = F.cross_entropy(network(x), y, reduction="none")
        wanted = torch.autograd.grad(expected.sum(), [*network.parameters()])
        torch.testing.assert_close(losses.split(counts)[k], expected.detach(), rtol=0, atol=1e-9)
        flat = torch.cat([slope.flatten() for slope in wanted])
        torch.testing.assert_close(slopes[k], flat, rtol=0, atol=1e-9)


def test_sizes_first_values_and_where_parameters_live():
    kinds = {"shared": {}, "own": {"head": "private"}, "frozen": {"head": "frozen"}}
    kinds = {n: models.SmallCnn(SMALL, CLASSES, **o) for n, o in kinds.items()}
    kinds["local"] = models.SmallCnn(SMALL, CLASSES, local=True)
    rows = [torch.cat(model.initial_values(np.random.default_rng(0))) for model in kinds.values()]
    assert all(torch.equal(rows[0], row) for row in rows)
    assert [m.layout.global_model for m in kinds.values()] == [True, False, True, False]
    assert [m.layout.trains_private for m in kinds.values()] == [False, True, False, True]
    apart = models.SmallCnn(SMALL, CLASSES, own=("*.bias",))
    drawn = [row[None] for row in apart.initial_values(np.random.default_rng(0))]
    for name, value in models.views(rows[0][None], kinds["shared"].layout.communicated).items():
        assert torch.equal(named(apart, drawn)[name], value)
    single = models.views(rows[0][None], kinds["shared"].layout.communicated)
    for layer, fan_in in (("conv2", 400), ("hidden", 128)):
        for name in ("weight", "bias"):
            assert 0.8 < float(single[f"{layer}.{name}"].abs().max()) * fan_in**0.5 <= 1


def test_what_is_sent_and_exported():
    model, images = models.SmallCnn(SMALL, CLASSES, head="private"), torch.randn(3, 1, 8, 8)
    rows = [row[None] for row in model.initial_values(np.random.default_rng(0))]
    whole = model.portable(named(model, rows))
    expected = model.logits(images, [3], named(model, rows))
    torch.testing.assert_close(models.cnn_scores(whole.weights, images), expected)
    shared = model.portable(models.views(rows[0], model.layout.communicated), private=False)
    assert (whole.num_classes, shared.num_classes, shared.rank) == (CLASSES, 0, 0)
    kept = ({"local": True}, {"own": ("conv1.*",)}, {"own": ("head.bias",)})
    *no_models, headless = (models.SmallCnn(SMALL, CLASSES, **options) for options in kept)
    every = named(model, rows)
    for one in no_models:
        with pytest.raises(ValueError, match="clients keep layers, and the rest is no model"):
            one.portable({spec.name: every[spec.name] for spec in one.layout.communicated})
    shared = {spec.name: every[spec.name] for spec in headless.layout.communicated}
    assert headless.portable(shared).num_classes == 0, "half a head is none"
    with pytest.raises(ValueError, match="at least 4 x 4"):
        models.CnnArchitecture(3, 1)
