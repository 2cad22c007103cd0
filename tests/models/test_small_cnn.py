"""The small CNN against torch's own layers, and a cohort of it against one client at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsdg.models.parameters import leaves, offsets, views
from fedsdg.models.small_cnn import (
    CnnArchitecture,
    SmallCnn,
    by_vmap,
    client_by_client,
    initial_values,
    make_layout,
)

CLASSES = 5
IMAGES = [(8, 1), (9, 1), (28, 1), (32, 3)]


def plain(architecture: CnnArchitecture, row: Tensor | None = None) -> nn.Sequential:
    """The same network of torch's layers in the usual order, with the weights of one row [d]."""
    side = architecture.image_size // 4
    network = nn.Sequential(
        nn.Conv2d(architecture.channels, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * side * side, 64),
        nn.ReLU(),
        nn.Linear(64, CLASSES),
    ).double()
    if row is not None:
        nn.utils.vector_to_parameters(row.double(), network.parameters())
    return network


def drawn(
    size: int = 8, channels: int = 1, clients: int = 4, images: int = 12, dtype=torch.float64
) -> tuple[CnnArchitecture, SmallCnn, Tensor, Tensor, Tensor]:
    """Architecture, model, rows [M, d], images and labels, all different."""
    architecture = CnnArchitecture(size, channels)
    model = SmallCnn(make_layout(architecture, CLASSES))
    generator = np.random.default_rng(0)
    rows = [initial_values(model.layout, generator)[0] for _ in range(clients)]
    pixels = torch.from_numpy(generator.normal(size=(images, channels, size, size)))
    return (
        architecture,
        model,
        torch.stack(rows).to(dtype),
        pixels.to(dtype),
        torch.arange(images) % CLASSES,
    )


def gradients(
    model: SmallCnn, rows: Tensor, images: Tensor, counts: Sequence[int], labels: Tensor
) -> tuple[Tensor, Tensor]:
    """(scores [B, classes], gradient [M, d]) of the sum of the losses."""
    slopes = torch.zeros_like(rows)
    specs = model.layout.communicated or model.layout.private
    scores = model.logits(images, counts, leaves(rows, slopes, specs))
    F.cross_entropy(scores, labels, reduction="sum").backward()
    return scores.detach(), slopes


@pytest.mark.parametrize("size, channels", IMAGES)
@pytest.mark.parametrize("counts", [[3, 3, 3, 3], [5, 0, 4, 3], [0, 6, 6, 0], [12, 0, 0, 0]])
def test_every_client_is_torchs_own_network(size, channels, counts):
    architecture, model, rows, images, labels = drawn(size, channels)
    scores, slopes = gradients(model, rows, images, counts, labels)
    start = 0
    for k, count in enumerate(counts):
        network = plain(architecture, rows[k])
        own = slice(start, start + count)
        start += count
        if not count:
            assert torch.equal(slopes[k], torch.zeros_like(slopes[k]))
            continue
        expected = network(images[own])
        F.cross_entropy(expected, labels[own], reduction="sum").backward()
        gradient = torch.cat([p.grad.flatten() for p in network.parameters()])
        torch.testing.assert_close(scores[own], expected, rtol=0, atol=1e-9)
        torch.testing.assert_close(slopes[k], gradient, rtol=0, atol=1e-9)


def test_one_client_is_many_clients_with_its_weights():
    _, model, rows, images, labels = drawn(clients=1)
    scores, slope = gradients(model, rows, images, [12], labels)
    for counts in ([4, 4, 4], [1, 0, 11], [7, 3, 2]):
        many, slopes = gradients(model, rows.repeat(3, 1), images, counts, labels)
        torch.testing.assert_close(many, scores, rtol=0, atol=1e-9)
        torch.testing.assert_close(slopes.sum(0), slope[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("size, channels", IMAGES)
@pytest.mark.parametrize("counts", [[3, 3, 3, 3], [5, 0, 4, 3], [0, 12, 0, 0]])
def test_both_ways_give_equal_scores_and_gradients(size, channels, counts):
    _, model, rows, images, labels = drawn(size, channels)
    found = []
    for way in (client_by_client, by_vmap):
        slopes = torch.zeros_like(rows)
        scores = way(images, counts, leaves(rows, slopes, model.layout.communicated))
        F.cross_entropy(scores, labels, reduction="sum").backward()
        found.append((scores.detach(), slopes))
    assert found[0][1].any()
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_a_client_does_not_feel_the_others():
    """Whoever stands beside it, and whatever its images: not a bit of a client changes."""
    _, model, rows, images, labels = drawn(dtype=torch.float32)
    before = gradients(model, rows.clone(), images, [3, 3, 3, 3], labels)
    rows[1] *= 2
    images[3:6] += 1
    after = gradients(model, rows.clone(), images, [3, 3, 3, 3], labels)
    others = [0, 2, 3]
    assert torch.equal(before[1][others], after[1][others])
    assert not torch.equal(before[1][1], after[1][1])


def test_gradients_are_the_derivatives():
    _, model, rows, images, labels = drawn(clients=2)
    _, slopes = gradients(model, rows, images, [7, 5], labels)
    direction = torch.from_numpy(np.random.default_rng(1).normal(size=rows.shape))
    losses = []
    for sign in (1, -1):
        moved = views(rows.detach() + sign * 1e-6 * direction, model.layout.communicated)
        losses.append(F.cross_entropy(model.logits(images, [7, 5], moved), labels, reduction="sum"))
    slope = float((losses[0] - losses[1]) / 2e-6)
    assert float((slopes * direction).sum()) == pytest.approx(slope, rel=1e-5)


def test_weights_made_once_serve_many_batches_with_or_without_a_private_branch():
    _, model, rows, images, _ = drawn(clients=2)
    parameters = views(rows, model.layout.communicated)
    expected = model.logits(images, [5, 7], parameters)
    for private in (True, False):
        weights = model.effective_weights(parameters, private)
        assert torch.equal(model.forward(images, [5, 7], weights), expected)
        first = model.forward(images[:4], [4, 0], weights)
        rest = model.forward(images[4:], [1, 7], weights)
        torch.testing.assert_close(torch.cat((first, rest)), expected, rtol=0, atol=1e-9)


def test_no_images_give_no_scores():
    _, model, rows, images, _ = drawn(clients=2)
    parameters = views(rows, model.layout.communicated)
    assert model.logits(images[:0], [0, 0], parameters).shape == (0, CLASSES)


@pytest.mark.parametrize("counts", [[6, 5], [12], [13, -1], [4, 4, 4]])
def test_counts_that_do_not_fit_are_refused(counts):
    _, model, rows, images, _ = drawn(clients=2)
    with pytest.raises(ValueError, match="counts"):
        model.logits(images, counts, views(rows, model.layout.communicated))


@pytest.mark.parametrize(
    "size, channels, classes, parameters",
    [(8, 1, 10, 22_154), (28, 1, 10, 114_314), (32, 3, 100, 151_684)],
)
def test_the_number_of_parameters_is_the_one_stated(size, channels, classes, parameters):
    layout = make_layout(CnnArchitecture(size, channels), classes)
    assert layout.d == parameters
    assert layout.d_private == 0
    assert {spec.group for spec in layout.communicated} == {"shared"}


def test_local_moves_all_of_it_into_the_private_row():
    architecture = CnnArchitecture(8, 1)
    shared = make_layout(architecture, CLASSES)
    local = make_layout(architecture, CLASSES, local=True)
    assert (local.communicated, local.private) == ((), shared.communicated)
    theta, nothing = initial_values(shared, np.random.default_rng(0))
    none, private = initial_values(local, np.random.default_rng(0))
    assert torch.equal(theta, private) and len(none) == len(nothing) == 0
    _, _, rows, images, labels = drawn()
    counts = [5, 0, 4, 3]
    expected = gradients(SmallCnn(shared), rows.clone(), images, counts, labels)
    got = gradients(SmallCnn(local), rows.clone(), images, counts, labels)
    for ours, theirs in zip(got, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_the_start_is_torchs():
    """Tensor by tensor the range of torch's own start; uniform, by its second and fourth moment."""
    architecture = CnnArchitecture(28, 1)
    layout = make_layout(architecture, CLASSES)
    theta, _ = initial_values(layout, np.random.default_rng(0))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = plain(architecture)
    columns = offsets(layout.communicated)
    layers = [module for module in network if hasattr(module, "weight")]
    for spec, theirs in zip(layout.communicated, network.parameters(), strict=True):
        ours = theta[columns[spec.name]]
        fan_in = next(
            math.prod(layer.weight.shape[1:])
            for layer in layers
            if layer.weight is theirs or layer.bias is theirs
        )
        bound = 1 / math.sqrt(fan_in)
        assert theirs.shape == spec.shape
        assert theirs.abs().max() <= bound and ours.abs().max() <= bound
        if spec.size > 1000:
            for values in (ours.double(), theirs.detach().flatten()):
                relative = values / bound
                assert relative.abs().max() > 0.99
                assert relative.mean().abs() < 4 * math.sqrt(1 / 3 / spec.size)
                assert relative.square().mean() == pytest.approx(1 / 3, rel=0.1)
                assert relative.pow(4).mean() == pytest.approx(1 / 5, rel=0.1)


def test_a_private_head_is_the_same_head_in_the_other_row():
    architecture = CnnArchitecture(8, 1)
    shared = make_layout(architecture, CLASSES)
    split = make_layout(architecture, CLASSES, head="private")
    assert (*split.communicated, *split.private) == shared.communicated
    assert [spec.name for spec in split.private] == ["head.weight", "head.bias"]
    theta, _ = initial_values(shared, np.random.default_rng(0))
    assert torch.equal(torch.cat(initial_values(split, np.random.default_rng(0))), theta)
    _, _, rows, images, _ = drawn()
    bodies, heads = rows.split([split.d, split.d_private], dim=1)
    parameters = views(bodies, split.communicated) | views(heads, split.private)
    expected = SmallCnn(shared).logits(images, [5, 0, 4, 3], views(rows, shared.communicated))
    assert torch.equal(SmallCnn(split).logits(images, [5, 0, 4, 3], parameters), expected)


def test_images_too_small_are_refused():
    with pytest.raises(ValueError, match="at least 4 x 4"):
        CnnArchitecture(3, 1)
    with pytest.raises(ValueError, match="2 classes"):
        make_layout(CnnArchitecture(8, 1), 1)
