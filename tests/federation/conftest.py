"""A small real federation: a tiny frozen ViT, random images, clients of different sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fedsdg.federation.local_work import Samples
from fedsdg.models.adapter_config import AdapterConfig
from fedsdg.models.adapters import initial_values, make_layout
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import Backbone, build, freeze
from fedsdg.models.cohort import CohortModel
from fedsdg.models.parameters import Layout
from fedsdg.rng import stream

CLASSES = 4
ARCHITECTURE = Architecture(8, 4, 1, 16, 2, 2, (0.5,), (0.5,))


@pytest.fixture(scope="session")
def backbone() -> Backbone:
    torch.manual_seed(0)
    return freeze(build(ARCHITECTURE), ARCHITECTURE, "tiny", {})


@dataclass
class Setting:
    model: CohortModel
    layout: Layout
    samples: Samples
    theta: torch.Tensor
    private: torch.Tensor


@pytest.fixture
def setting(backbone: Backbone) -> Callable[..., Setting]:
    def make(dtype: torch.dtype = torch.float64, samples: int = 120, **options) -> Setting:
        config = AdapterConfig(rank=2, alpha=4.0, **options)
        layout = make_layout(backbone.architecture, CLASSES, config)
        theta, private = initial_values(layout, config, stream("init", 0))
        generator = torch.Generator().manual_seed(1)
        return Setting(
            CohortModel(backbone, layout, config, CLASSES, dtype=dtype),
            layout,
            Samples(
                torch.randn(samples, 1, 8, 8, generator=generator, dtype=dtype),
                torch.randint(0, CLASSES, (samples,), generator=generator),
            ),
            theta.to(dtype),
            private.to(dtype),
        )

    return make


@pytest.fixture
def batches_of() -> Callable[..., list[list[np.ndarray]]]:
    """Batches of clients with the given numbers of samples, on disjoint samples."""
    from fedsdg.federation.cohorts import draw_batches

    def make(sizes: Sequence[int], batch_size: int = 4, epochs: int = 2) -> list[list[np.ndarray]]:
        starts = np.cumsum([0, *sizes])
        return [
            draw_batches(
                np.arange(starts[k], starts[k + 1]),
                batch_size=batch_size,
                epochs=epochs,
                generator=stream("batches", 0, 1, k),
            )
            for k in range(len(sizes))
        ]

    return make
