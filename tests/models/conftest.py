"""A tiny random vision transformer, and models of it with random parameters for the tests."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsdg import models

CLASSES = 5
DUAL = {"branch": "dual", "private_init": "lora"}
#: Adapters of every kind that a method uses.
VARIANTS = {
    "shared": {},
    "local": {"local": True},
    "private head": {"head": "private"},
    "gated head": {"head": "gated"},
    "residual head": {"head": "residual"},
    "frozen head": {"head": "frozen"},
    "frozen A": {"factor_a": "frozen"},
    "private B": {"factor_b": "private"},
    "block gates": DUAL,
    "layer gates": {**DUAL, "gate": "layer"},
    "client gate, factors": {**DUAL, "gate": "client", "composition": "factors"},
    "m = 0": {**DUAL, "gate_fixed": 0.0},
    "m = 1": {**DUAL, "gate_fixed": 1.0},
    "mixture": {**DUAL, "composition": "mixture", "gate_fixed": 0.3},
    "shared A": {**DUAL, "private_subspace": "shared-a"},
    "first block": {**DUAL, "private_block": "first"},
    "last block": {**DUAL, "private_block": "last", "composition": "factors", "gate": "layer"},
}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def random_backbone(architecture, **options):
    """A backbone whose every weight is random: timm starts biases at 0 and norms at 1."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = models.build_backbone(architecture, **options)
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter), alpha=0.2)
    return models.freeze(model, architecture, "tiny", {})


@pytest.fixture(scope="session")
def tiny():
    return models.Architecture(8, 4, 1, 32, 2, 2, (0.5,), (0.5,))


@pytest.fixture(scope="session")
def make_model(tiny):
    backbone = random_backbone(tiny)

    def make(kind=models.CohortModel, dtype=torch.float64, device="cpu", bfloat16=False, **options):
        config = models.AdapterConfig(**{"rank": 3, **options})
        return kind(backbone, config, CLASSES, dtype=dtype, device=device, bfloat16=bfloat16)

    return make


def random_rows(model, clients, dtype=torch.float64):
    """Random communicated [M, d] and private rows [M, d_private], no factor zero."""
    generator = np.random.default_rng(0)
    sizes = (model.layout.d, model.layout.d_private)
    rows = (torch.from_numpy(generator.normal(0, 0.2, (clients, size))) for size in sizes)
    return [row.to(dtype) for row in rows]


def named(model, rows):
    """The parameters of rows, as models take them."""
    specs = (model.layout.communicated, model.layout.private)
    shared, private = (models.block_views(*pair) for pair in zip(rows, specs, strict=True))
    return shared | private


def random_images(count, dtype=torch.float64):
    """Images [B, 1, 8, 8] and labels [B]."""
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(count, 1, 8, 8, generator=generator, dtype=torch.float64)
    return images.to(dtype), torch.arange(count) % CLASSES


def gradients(model, rows, losses):
    """(losses [B], gradients by both rows) of a function of the parameters."""
    slopes = [torch.zeros_like(row) for row in rows]
    parameters = models.leaves(rows[0], slopes[0], model.layout.communicated)
    parameters |= models.leaves(rows[1], slopes[1], model.layout.private)
    each = losses(parameters)
    each.sum().backward()
    return each.detach(), slopes
