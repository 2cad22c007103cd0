"""A tiny random vision transformer, and models of it with random parameters for the tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsdg.next_models import (
    AdapterConfig,
    Architecture,
    Backbone,
    ClientModel,
    CohortModel,
    block_views,
    build_backbone,
    freeze,
    leaves,
)

CLASSES = 5
#: Adapters of every kind that a method uses.
VARIANTS: Mapping[str, Mapping[str, object]] = {
    "shared": {},
    "local": {"local": True},
    "private head": {"head": "private"},
    "gated head": {"head": "gated"},
    "residual head": {"head": "residual"},
    "frozen head": {"head": "frozen"},
    "frozen A": {"factor_a": "frozen"},
    "private B": {"factor_b": "private"},
    "block gates": {"branch": "dual", "private_init": "lora"},
    "layer gates": {"branch": "dual", "gate": "layer"},
    "client gate, factors": {"branch": "dual", "gate": "client", "composition": "factors"},
    "layer gates, factors": {"branch": "dual", "gate": "layer", "composition": "factors"},
    "m = 0": {"branch": "dual", "gate_fixed": 0.0},
    "m = 1": {"branch": "dual", "gate_fixed": 1.0},
    "mixture": {"branch": "dual", "composition": "mixture", "gate_fixed": 0.3},
    "shared A": {"branch": "dual", "private_subspace": "shared-a"},
    "first block": {"branch": "dual", "private_block": "first"},
    "last block": {"branch": "dual", "private_block": "last", "composition": "factors"},
}
COUNTS = {"equal": [4, 4, 4], "ragged": [5, 0, 6, 1]}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def random_backbone(architecture: Architecture, **options: object) -> Backbone:
    """A backbone whose every weight is random: timm starts biases at 0 and norms at 1."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = build_backbone(architecture, **options)
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter), alpha=0.2)
    return freeze(model, architecture, "tiny", {})


@pytest.fixture(scope="session")
def tiny() -> Architecture:
    return Architecture(8, 4, 1, 32, 2, 2, (0.5,), (0.5,))


@pytest.fixture(scope="session")
def backbone(tiny: Architecture) -> Backbone:
    return random_backbone(tiny)


@pytest.fixture(scope="session")
def make_model(backbone: Backbone) -> Callable[..., CohortModel]:
    def make(kind=CohortModel, dtype=torch.float64, **options) -> CohortModel:
        config = AdapterConfig(**{"rank": 3, **options})
        return kind(backbone, config, CLASSES, dtype=dtype)

    return make


def random_rows(model: ClientModel, clients: int, dtype=torch.float64) -> tuple[Tensor, Tensor]:
    """Random communicated [M, d] and private rows [M, d_private], no factor zero."""
    generator = np.random.default_rng(0)
    sizes = (model.layout.d, model.layout.d_private)
    shared, private = (torch.from_numpy(generator.normal(0, 0.2, (clients, n))) for n in sizes)
    return shared.to(dtype), private.to(dtype)


def named(model: ClientModel, rows: Sequence[Tensor]) -> dict[str, Tensor]:
    """The parameters of rows, as models take them."""
    shared, private = rows
    layout = model.layout
    return block_views(shared, layout.communicated) | block_views(private, layout.private)


def random_images(count: int, dtype=torch.float64) -> tuple[Tensor, Tensor]:
    """Images [B, 1, 8, 8] and labels [B]."""
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(count, 1, 8, 8, generator=generator, dtype=torch.float64)
    return images.to(dtype), torch.arange(count) % CLASSES


def gradients(
    model: ClientModel, rows: Sequence[Tensor], losses: Callable[[dict[str, Tensor]], Tensor]
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """(losses [B], gradients by both rows) of a function of the parameters."""
    slopes = tuple(torch.zeros_like(row) for row in rows)
    parameters = leaves(rows[0], slopes[0], model.layout.communicated)
    parameters |= leaves(rows[1], slopes[1], model.layout.private)
    each = losses(parameters)
    if each.requires_grad:
        each.sum().backward()
    return each.detach(), slopes
