"""The federations whose rounds are timed, built as `fedsdg run` builds a run from its config.

Backbones have random weights and ViT-Tiny random images: no arithmetic depends on their values.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from fedsdg.config.layers import load
from fedsdg.data.datasets import ImageData
from fedsdg.data.partition import partition_clients
from fedsdg.data.skew import parse_skew
from fedsdg.experiment.building import build
from fedsdg.experiment.gpu import repeatable
from fedsdg.experiment.material import load_images, prepare_material
from fedsdg.federation.rounds import RoundRecord, run
from fedsdg.federation.setup import Server, Setup
from fedsdg.federation.store import ClientStore
from fedsdg.files.places import shipped
from fedsdg.models import Architecture, build_backbone, freeze

CONFIG = shipped("config/config.yaml")
NEVER = 10**9
"""Rounds between evaluations: training and aggregation alone are timed."""
RANDOM_IMAGES, RANDOM_CLASSES = 4800, 100


class Model(NamedTuple):
    """A model with its data, clients and training."""

    title: str
    architecture: Architecture
    skew: str
    settings: tuple[str, ...]
    """laid over config/config.yaml"""
    random_images: bool
    """whether it trains on random images instead of scikit-learn's digits"""

    def data(self) -> ImageData:
        """Return digits or random images."""
        if not self.random_images:
            return load_images("digits")
        draw = np.random.default_rng(0)
        pixels = draw.integers(0, 256, (RANDOM_IMAGES, 32, 32, 3), dtype=np.uint8)
        labels = draw.integers(0, RANDOM_CLASSES, RANDOM_IMAGES)
        return ImageData("random", pixels, labels, RANDOM_CLASSES)


MODELS = {
    "digits": Model(
        "digits",
        Architecture(8, 4, 1, 64, 6, 4, (0.5,), (0.5,)),
        "dirichlet~0.1",
        ("federation.clients_per_round=5",),
        random_images=False,
    ),
    "vit-tiny": Model(
        "ViT-Tiny",
        Architecture(32, 4, 3, 192, 6, 3, (0.5,) * 3, (0.25,) * 3),
        "dirichlet~0.3",
        ("federation.clients_per_round=10", "training.batch_size=32", "training.epochs=1"),
        random_images=True,
    ),
}


@dataclass
class Federation:
    """A federation between two rounds."""

    setup: Setup
    server: Server
    store: ClientStore

    def step(self, number: int) -> RoundRecord:
        """Do the round of this number and return what it adds to the records."""
        self.server, record = next(run(self.setup, self.server, self.store, number - 1))
        return record


def federation(name: str, method: str, device: str = "cpu", **training: str) -> Federation:
    """Return a federation before its first round, which records rounds but never evaluates.

    Args:
        name: Of `MODELS`.
        method: Of the table of methods.
        device: "cpu" or "cuda".
        training: Keys of the config's section `training`.
    """
    model = MODELS[name]
    training |= {"device": device}
    settings = [f"training.{key}={value}" for key, value in training.items()]
    config = load([CONFIG], (*model.settings, *settings))
    given = config.run("digits", model.skew, config.method(method), 0)
    setup = build(given, *_prepared(name, device))
    schedule = replace(setup.schedule, rounds=NEVER, evaluate_every=NEVER)
    setup = replace(setup, schedule=schedule)
    return Federation(setup, *setup.initial())


@cache
def _prepared(name: str, device: str) -> tuple[Any, Any]:
    """Return data and backbone on a device, and the partition."""
    model = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = build_backbone(model.architecture)
    frozen = freeze(backbone.to(device), model.architecture, name, {})
    config = load([CONFIG], model.settings)
    data = model.data()
    skew = parse_skew(model.skew)
    partition = partition_clients(data, int(config.federation.clients), skew, 0, config.partition)
    return prepare_material(data, frozen, device), partition


def digest(name: str, device: str, rounds: int) -> str:
    """Return SHA-256 of the server's model and of what clients keep after some rounds of FedSDG."""
    made = federation(name, "fedsdg", device)
    with repeatable(device):
        for number in range(1, rounds + 1):
            made.step(number)
    kept = made.store.read("private", np.arange(made.setup.num_clients))
    hashed = hashlib.sha256()
    for tensor in (made.server.models, kept):
        hashed.update(tensor.cpu().numpy().tobytes())
    return hashed.hexdigest()
