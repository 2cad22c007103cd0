"""What the golden test asks of the engine. Where the engine changes, this file alone does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsdg.config.config import Config
from fedsdg.data.partition import partition_clients
from fedsdg.data.skew import parse_skew
from fedsdg.experiment.building import build
from fedsdg.experiment.material import load_images, prepare_material
from fedsdg.federation import rounds
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.methods.families import METHODS
from fedsdg.models import (
    Architecture,
    Backbone,
    Training,
    build_backbone,
    freeze,
    load_backbone,
    save_backbone,
)

__all__ = [
    "METHODS",
    "Cell",
    "Outcome",
    "load_backbone",
    "pretrained",
    "random_backbone",
    "save_backbone",
]


@dataclass(frozen=True)
class Outcome:
    """A finished run: rows of both tables of the record, and the models.

    Attributes:
        rounds: a row for each round.
        clients: a row for each client and round.
        models: the server's, [C, d].
        private: what clients keep to themselves, [K, d_p].
    """

    rounds: list[dict[str, Any]]
    clients: list[dict[str, Any]]
    models: Tensor
    private: Tensor


class Cell:
    """Images and partition that several runs have in common."""

    def __init__(self, raw: Mapping[str, Any], backbone: Backbone | None) -> None:
        config = Config.read(raw)
        data = load_images(config.datasets[0])
        self._material = prepare_material(data, backbone, "cpu")
        clients = config.federation.clients
        skew = parse_skew(config.skews[0])
        self._partition = partition_clients(data, clients, skew, 0, config.partition)

    def outcome(self, raw: Mapping[str, Any], folder: Path | None = None) -> Outcome:
        """All rounds of a config's method; with a folder half of them after a checkpoint.

        Raises:
            ValueError: the method, or what is asked of it, is refused.
        """
        run = next(Config.read(raw).runs())
        setup = build(run, self._material, self._partition)
        server, store = setup.initial()
        records: dict[str, list[Any]] = {"rounds": [], "clients": []}
        half = run.federation.rounds // 2
        for t, (after, record) in enumerate(rounds.run(setup, server, store), 1):
            server = after
            records["rounds"].append(record.round)
            records["clients"] += record.clients
            if folder is not None and t == half:
                Checkpoints(folder, {}).save(t, setup, server, store, records)
                break
        if folder is not None:
            setup = build(run, self._material, self._partition)
            server, store = setup.initial()
            restored = Checkpoints(folder, {}).restore(setup, server, store)
            assert restored is not None
            done, server, records = restored
            for after, record in rounds.run(setup, server, store, done):
                server = after
                records["rounds"].append(record.round)
                records["clients"] += record.clients
        for observer in setup.observers:
            observer.complete(records["rounds"], records["clients"])
        private = store.read("private", np.arange(setup.num_clients))
        private[torch.from_numpy(store.counts.trained == 0)] = 0
        return Outcome(records["rounds"], records["clients"], server.models, private)


# --- Backbones ------------------------------------------------------------------------------------


def random_backbone(shape: Mapping[str, Any]) -> Backbone:
    """A frozen vision transformer as timm draws it."""
    architecture = Architecture(**shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return freeze(build_backbone(architecture), architecture, "random", {})


def pretrained(shape: Mapping[str, Any], images: Tensor, labels: Tensor, steps: int) -> Tensor:
    """The weights [n] of a vision transformer after some steps, broken off in the middle."""

    def training() -> Training:
        torch.manual_seed(0)
        model = build_backbone(Architecture(**shape), num_classes=int(labels.max()) + 1)
        return Training(
            model,
            steps,
            learning_rate=0.01,
            beta2=0.98,
            weight_decay=0.05,
            warmup_steps=2,
            label_smoothing=0.1,
            clip_norm=1.0,
            bfloat16=False,
            ema=0.9,
        )

    with torch.random.fork_rng(devices=[]):
        one = training()
        for step in range(steps):
            if step == steps // 2:
                state = {name: value.clone() for name, value in one.state().items()}
                one = training()
                one.restore(state)
            one.step(images[step::steps], labels[step::steps])
        one.finish()
    return torch.cat([weight.flatten() for weight in one.model.state_dict().values()])
