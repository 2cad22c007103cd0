"""The federations whose rounds are timed, built as `fedsdg run` builds a run from its config.

Backbones have random weights and ViT-Tiny random images: no arithmetic depends on their values.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fedsdg.data.datasets import ImageData, image_data
from fedsdg.experiment.building import build
from fedsdg.experiment.config import Config
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment.material import make_partition, prepare_material
from fedsdg.experiment.run_config import RunConfig
from fedsdg.experiment.sections import TrainingConfig
from fedsdg.federation.records import Records
from fedsdg.federation.rounds import Federation
from fedsdg.models.architecture import Architecture
from fedsdg.models.backbones import build as build_backbone
from fedsdg.models.backbones import freeze
from fedsdg.parts import declared

CONFIG = Path(__file__).parents[1] / "config" / "config.yaml"
NEVER = 10**9
"""Evaluated is after so many rounds: what is timed is training and aggregation."""


class Measured(NamedTuple):
    """A model with its data, its clients and its work."""

    title: str
    architecture: Architecture
    skew: str
    images: int | None
    """So many random images in 100 classes; None: scikit-learn's digits."""
    precisions: tuple[str, ...]
    """In which it is measured; the first is the one that others are compared in."""
    seconds: float
    """A fair time for all turns of one comparison, in the full form."""
    settings: tuple[str, ...] = ()
    """Laid over config/config.yaml."""

    @property
    def config(self) -> Config:
        return load_config([CONFIG], self.settings)

    def data(self) -> str | ImageData:
        """A name of the table of data sets, or images."""
        if self.images is None:
            return "digits"
        draw = np.random.default_rng(0)
        pixels = draw.integers(0, 256, (self.images, 32, 32, 3), dtype=np.uint8)
        return image_data("random", pixels, draw.integers(0, 100, self.images), 100)


MEASURED = {
    "digits": Measured(
        "digits, 5 of 20 clients",
        Architecture(8, 4, 1, 64, 6, 4, (0.5,), (0.5,)),
        "dirichlet~0.1",
        None,
        ("float32",),
        10.0,
        ("federation.clients_per_round=5",),
    ),
    "vit-tiny": Measured(
        "ViT-Tiny, 32×32, patch 4",
        Architecture(32, 4, 3, 192, 6, 3, (0.5,) * 3, (0.25,) * 3),
        "dirichlet~0.3",
        4800,
        ("float32", "bfloat16"),
        40.0,
        ("federation.clients_per_round=10", "training.batch_size=32", "training.epochs=1"),
    ),
}


def precisions() -> tuple[str, ...]:
    """In which precisions the engine trains: the choices of the config's `training.precision`."""
    return declared(TrainingConfig)["precision"].choices or ()


def run_of(name: str, method: str, **training: str) -> RunConfig:
    """The run of config/config.yaml and the settings, ``training`` laid over, with seed 0."""
    measured = MEASURED[name]
    settings = [f"training.{key}={value}" for key, value in training.items()]
    config = load_config([CONFIG], (*measured.settings, *settings))
    return config.run("digits", measured.skew, config.method(method), 0)


def federation(name: str, method: str, device: str = "cpu", **training: str) -> Federation:
    """A federation before its first round, which records and counts bytes but never evaluates."""
    run = run_of(name, method, device=device, **training)
    material, partition = _prepared(name, device)
    made = build(run, material, partition)
    return replace(
        made,
        schedule=replace(made.schedule, rounds=NEVER, evaluate_every=NEVER),
        records=Records(),
    )


@cache
def _prepared(name, device):
    measured = MEASURED[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_backbone(measured.architecture)
    backbone = freeze(model.to(device), measured.architecture, name, {})
    data, config = measured.data(), measured.config
    partition = make_partition(data, measured.skew, 0, config.federation.clients, config.partition)
    return prepare_material(data, backbone, device), partition
