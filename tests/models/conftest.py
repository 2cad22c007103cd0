"""Tiny random vision transformers and cohorts for the tests of the models room."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedsdg.models.adapter_config import AdapterConfig
from fedsdg.models.adapters import make_layout
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import Backbone, build, freeze
from fedsdg.models.cohort import CohortModel
from fedsdg.models.parameters import views

CLASSES = 5


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tiny() -> Architecture:
    return Architecture(8, 4, 1, 16, 2, 2, (0.5,), (0.5,))


@pytest.fixture
def make_backbone(tiny: Architecture) -> Callable[..., Backbone]:
    def make(**options) -> Backbone:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model = build(tiny, **options)
            # timm starts biases at zero and norms at one: a mistake with them would not show.
            for parameter in model.parameters():
                parameter.data.add_(torch.randn_like(parameter), alpha=0.2)
        return freeze(model, tiny, "tiny", {})

    return make


@pytest.fixture
def backbone(make_backbone) -> Backbone:
    return make_backbone()


@pytest.fixture
def make_model(backbone: Backbone) -> Callable[..., CohortModel]:
    def make(dtype: torch.dtype = torch.float64, **options) -> CohortModel:
        config = AdapterConfig(**{"rank": 3, **options})
        layout = make_layout(backbone.architecture, CLASSES, config)
        return CohortModel(backbone, layout, config, CLASSES, dtype=dtype)

    return make


@pytest.fixture
def random_rows() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Random communicated [M, d] and private [M, d_private] rows, no factor zero."""

    def make(model: CohortModel, clients: int, seed: int = 0):
        generator = np.random.default_rng(seed)
        sizes = (model.layout.d, model.layout.d_private)
        return tuple(
            torch.from_numpy(generator.normal(0.0, 0.3, (clients, size))).to(model.dtype)
            for size in sizes
        )

    return make


@pytest.fixture
def named(random_rows) -> Callable[..., dict[str, torch.Tensor]]:
    def make(model: CohortModel, clients: int, seed: int = 0) -> dict[str, torch.Tensor]:
        shared, private = random_rows(model, clients, seed)
        layout = model.layout
        return {**views(shared, layout.communicated), **views(private, layout.private)}

    return make


@pytest.fixture
def images() -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(12, 1, 8, 8, generator=generator, dtype=torch.float64)
