"""A small federation that tries out a part: drawn images, a tiny transformer, eight clients."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from itertools import islice
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fedsdg.config.config import Config
from fedsdg.config.scenarios import overlay
from fedsdg.data.datasets import ImageData
from fedsdg.errors import ConfigError
from fedsdg.experiment.building import build
from fedsdg.experiment.material import Material, prepare_material
from fedsdg.experiment.partitions import draw
from fedsdg.federation import rounds
from fedsdg.federation.setup import Setup
from fedsdg.models import Architecture, build_backbone, freeze

CLASSES = 4
CLIENTS = 8
CONFIG = {
    "experiment": "check",
    "datasets": ["digits"],
    "skews": ["dirichlet~1.0"],
    "seeds": [0],
    "backbone": "tiny",
    "backbones": {"tiny": {"source": "timm", "timm_name": "vit_tiny_patch16_224"}},
    "federation": {"clients": CLIENTS, "clients_per_round": 5, "rounds": 4, "evaluate_every": 2},
    "partition": {"min_samples": 8, "min_test": 1},
    "training": {"epochs": 1, "kernel": "torch", "eta_g": 0.01, "eta_p": 0.01, "eta_m": 0.01},
    "adapters": {"rank": 2, "alpha": 4.0},
    "methods": ["fedavg-uniform"],
    "conditions": {"benchmark_images": 20},
}


class Federation:
    """A federation between two rounds, and its records so far."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.server, self.store = setup.initial()
        self.rounds: list[dict[str, Any]] = []
        self.clients: list[dict[str, Any]] = []

    @classmethod
    def of(cls, changed: Mapping[str, Any], trace: int = 0) -> Self:
        """Put one together.

        Args:
            changed: What is laid over `CONFIG`.
            trace: Compute the values of terms for each batch whose number it divides; 0: never.

        Raises:
            ConfigError: Values do not go together, or do not suit so few clients.
        """
        try:
            config = Config.read(overlay(CONFIG, changed))
        except ConfigError:  # Some rules need all clients in a round.
            everyone = {"federation": {"clients_per_round": CLIENTS}}
            config = Config.read(overlay(overlay(CONFIG, changed), everyone))
        run = next(config.runs())
        material = _material()
        return cls(build(run, material, draw(run, material.data), trace=trace))

    def run(self, most: int | None = None) -> Self:
        """Do the rounds that are left, or some of them."""
        left = rounds.run(self.setup, self.server, self.store, len(self.rounds))
        for server, record in islice(left, most):
            self.server = server
            self.rounds.append(record.round)
            self.clients += record.clients
        return self

    def facts(self) -> dict[str, Any]:
        """Return all that it is, by name, as bytes and text."""
        everyone = np.arange(self.setup.num_clients)
        kept = {name: self.store.read(name, everyone) for name in self.store.first}
        state = {"models": self.server.models, "state": self.server.state, "kept": kept}
        found = {name: array.tobytes() for name, array in arrays(state)}
        return found | {"records": json.dumps([self.rounds, self.clients])}


def arrays(value: Any, name: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Yield a copy of each tensor and array within a value, with the names that lead to it."""
    if isinstance(value, Tensor | np.ndarray):
        yield name, np.array(value.detach() if isinstance(value, Tensor) else value)
        return
    entries: Mapping[Any, Any] = {}
    if isinstance(value, Mapping):
        entries = value
    elif is_dataclass(value):
        entries = vars(value)
    elif isinstance(value, list | tuple):
        entries = dict(enumerate(value))
    for key, entry in entries.items():
        yield from arrays(entry, f"{name}.{key}".removeprefix("."))


@cache
def _material() -> Material:
    """Return images with stripes whose place is their class, under noise, and a backbone."""
    random = np.random.default_rng(0)
    labels = np.arange(480) % CLASSES
    images = random.integers(0, 120, (480, 8, 8)).astype(np.uint8)
    for label in range(CLASSES):
        images[labels == label, :, label::CLASSES] += 100
    architecture = Architecture(8, 4, 1, 16, 2, 2, (0.5,), (0.5,))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = freeze(build_backbone(architecture), architecture, "tiny", {})
    return prepare_material(ImageData("drawn", images, labels, CLASSES), backbone, "cpu")
