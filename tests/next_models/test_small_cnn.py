"""The small CNN against torch's own layers, client by client, on both ways of computing it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedsdg.next_models import CnnArchitecture, SmallCnn, cnn_scores, views
from fedsdg.next_models import small_cnn as module
from tests.next_models.conftest import CLASSES, gradients, named


def torchs_network(size, channels, row):
    """The same network of torch's layers, with the weights of one row [d]."""
    side = size // 4
    network = nn.Sequential(
        *(nn.Conv2d(channels, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * side * side, 64), nn.ReLU(), nn.Linear(64, CLASSES)),
    ).double()
    nn.utils.vector_to_parameters(row, network.parameters())
    return network


@pytest.mark.parametrize("way", ["_client_by_client", "_by_vmap"])
@pytest.mark.parametrize(("size", "channels"), [(8, 1), (9, 1), (32, 3)])
@pytest.mark.parametrize("counts", [[4, 4, 4], [5, 0, 6, 1]])
def test_every_client_is_torchs_own_network(monkeypatch, way, size, channels, counts):
    model = SmallCnn(CnnArchitecture(size, channels), CLASSES)
    monkeypatch.setattr(module, "_client_by_client", getattr(module, way))
    draws = np.random.default_rng(0)
    rows = torch.stack([model.initial_values(draws)[0] for _ in counts]).double()
    images = torch.from_numpy(draws.normal(size=(12, channels, size, size)))
    labels = torch.arange(12) % CLASSES

    def ours(parameters):
        weights = model.effective_weights(parameters)
        return model.losses(images, labels, torch.ones(12), counts, weights)

    losses, (slopes, _) = gradients(model, (rows, rows[:, :0]), ours)
    for k, (x, y) in enumerate(zip(images.split(counts), labels.split(counts), strict=True)):
        network = torchs_network(size, channels, rows[k])
        expected = F.cross_entropy(network(x), y, reduction="none")
        torch.testing.assert_close(losses.split(counts)[k], expected.detach(), rtol=0, atol=1e-9)
        if counts[k]:
            expected.sum().backward()
        flat = [p.grad.flatten() for p in network.parameters() if p.grad is not None]
        wanted = torch.cat(flat) if flat else torch.zeros(model.layout.d).double()
        torch.testing.assert_close(slopes[k], wanted, rtol=0, atol=1e-9)


def test_sizes_first_values_and_where_parameters_live():
    sizes = {(8, 1, 10): 22_154, (28, 1, 10): 114_314, (32, 3, 100): 151_684}
    for (side, channels, classes), size in sizes.items():
        assert SmallCnn(CnnArchitecture(side, channels), classes).layout.d == size
    rows = {}
    for options in ({}, {"head": "private"}, {"head": "frozen"}, {"local": True}):
        model = SmallCnn(CnnArchitecture(8, 1), CLASSES, **options)
        rows[str(options)] = torch.cat(model.initial_values(np.random.default_rng(0)))
        layout = model.layout
        assert layout.global_model == (options in ({}, {"head": "frozen"}))
        assert layout.trains_private == (options in ({"head": "private"}, {"local": True}))
    first, *others = rows.values()
    assert all(torch.equal(first, other) for other in others)
    single = views(first[None], SmallCnn(CnnArchitecture(8, 1), CLASSES).layout.communicated)
    for layer, fan_in in (("conv2", 400), ("hidden", 128)):
        for name in ("weight", "bias"):
            values = single[f"{layer}.{name}"]
            assert 0.8 < float(values.abs().max()) * fan_in**0.5 <= 1


def test_what_is_sent_and_exported():
    model = SmallCnn(CnnArchitecture(8, 1), CLASSES, head="private")
    rows = [row[None] for row in model.initial_values(np.random.default_rng(0))]
    images = torch.randn(3, 1, 8, 8)
    whole = model.portable(named(model, rows))
    expected = model.logits(images, [3], named(model, rows))
    torch.testing.assert_close(cnn_scores(whole.weights, images), expected)
    assert whole.rank == 0 and whole.num_classes == CLASSES
    shared = model.portable(views(rows[0], model.layout.communicated), private=False)
    assert "head.weight" not in shared.weights and shared.num_classes == 0
    local = SmallCnn(CnnArchitecture(8, 1), CLASSES, local=True)
    with pytest.raises(ValueError, match="keep everything to themselves"):
        local.portable({}, private=False)
    with pytest.raises(ValueError, match="at least 4 x 4"):
        CnnArchitecture(3, 1)
