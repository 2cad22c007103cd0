"""One run alone: the partition and the backbone that it lacks are made, then it is done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsdg.experiment.backbones import pretraining
from fedsdg.experiment.backbones.made import require_made, take_recorded
from fedsdg.experiment.config import Config
from fedsdg.experiment.grid import backbone_file, division_of, kept_or_made
from fedsdg.experiment.initial_model import require_start
from fedsdg.experiment.loading import load_images
from fedsdg.experiment.material import prepare_material
from fedsdg.experiment.method_entries import MethodConfig
from fedsdg.experiment.possible import require_possible
from fedsdg.experiment.runs import Progress, execute
from fedsdg.files.places import RUN, filled, partition_of
from fedsdg.models import load_backbone

#: From a title and the number of rounds to what is told of each round.
Watch = Callable[[str, int], AbstractContextManager[Progress]]


@dataclass(frozen=True)
class Single:
    """One run of a config, which has been checked."""

    config: Config
    method: MethodConfig
    dataset: str
    setting: str
    seed: int

    @property
    def title(self) -> str:
        return f"{self.dataset} {self.setting} {self.method.label} seed {self.seed}"

    @property
    def folder(self) -> Path:
        """Where a grid would have it."""
        return self.config.root / filled(
            RUN,
            experiment=self.config.experiment,
            dataset=self.dataset,
            clients=self.config.federation.clients,
            setting=self.setting,
            method=self.method.label,
            seed=self.seed,
        )


def single(
    config: Config,
    method: str,
    dataset: str | None = None,
    setting: str | None = None,
    seed: int | None = None,
) -> Single:
    """The run of these names, of the config or beyond it; what is left out must be one of its own.

    Raises ``ValueError`` for names that mean nothing, and for what cannot be run.
    """
    config = config.including(method, dataset, setting)
    chosen = config.method(method)
    require_possible(config, chosen.label)
    return Single(
        config,
        chosen,
        _one_of(dataset, config.datasets, "dataset"),
        _one_of(setting, config.settings, "skew"),
        config.seeds[0] if seed is None else seed,
    )


def do(one: Single, store: Path, output: Path, watch: Watch, *, trace: int = 0) -> str | None:
    """Do the run, or take it from the store, and write its records into ``output``.

    Returns None when it went well, else the sentence of its failure, which is recorded. ``store``:
    the folder of finished runs; checkpoints lie beside it. ``trace``: print losses, penalties and
    gates of each client in every batch of such a number; 0: of none.
    """
    config = one.config
    source = config.source(one.dataset)
    weights = backbone_file(config)
    if weights and weights.is_file():
        require_made(config.backbone, config.backbones[config.backbone], weights)
    # First of all, so that what cannot be had or divided is known before anything is trained.
    images = load_images(source)
    for note in images.notes:
        print(f"fedsdg: {one.dataset}: {note}", file=sys.stderr, flush=True)
    wanted = config.run(one.dataset, one.setting, one.method, one.seed)
    file = config.root / partition_of(one.dataset, config.federation.clients, one.setting, one.seed)
    shares = kept_or_made(division_of(wanted, source, file), lambda _: images)
    options = config.backbones.get(config.backbone, {})
    if weights and not (weights.is_file() or take_recorded(config.backbone, options, weights)):
        pretraining.pretrain(
            options,
            weights,
            checkpoints=store.parent / "checkpoints",
            checkpoint_seconds=config.checkpoint_seconds,
        )
    backbone = load_backbone(weights) if weights else None
    material = prepare_material(images, backbone, config.training.device)
    require_start(wanted, material)
    identity: Mapping[str, Any] = config.identity(one.dataset, one.setting, one.method, one.seed)
    with watch(one.title, config.federation.rounds) as progress:
        return execute(
            wanted,
            material,
            shares,
            output,
            store=store,
            identity=identity,
            progress=progress,
            checkpoint_seconds=config.checkpoint_seconds,
            trace=trace,
        )


def _one_of(value: str | None, known: tuple[str, ...], what: str) -> str:
    if value is None and len(known) != 1:
        raise ValueError(f"name one {what} with --{what}: {', '.join(known)}")
    return known[0] if value is None else value
