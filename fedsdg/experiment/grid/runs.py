"""The runs of a grid: which there are, in which order, and which are finished."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsdg import files
from fedsdg.experiment.config import Config
from fedsdg.experiment.reach import source_hash
from fedsdg.experiment.run_config import RunConfig
from fedsdg.experiment.store import MODELS, Address
from fedsdg.files import hint
from fedsdg.files.places import BACKBONE, RUN_FILES, RUNS, filled, partition_of, run_below

if TYPE_CHECKING:
    from fedsdg.experiment.loading import Source


@dataclass(frozen=True)
class Run:
    """One run of the grid, and where its files are."""

    config: RunConfig
    source: Source
    identity: dict[str, Any]
    backbone: Path | None
    partition: Path
    folder: Path
    store: Path
    checkpoint_seconds: float

    @property
    def title(self) -> str:
        named = self.identity
        return f"{named['dataset']} {named['skew']} {named['label']} seed {named['seed']}"


def backbone_file(config: Config) -> Path | None:
    """Where the backbone of an experiment lies; None where all parameters are trained."""
    if config.trainable == "full":
        return None
    return config.root / filled(BACKBONE, backbone=config.backbone)


def grid_runs(config: Config, store: Path, only: Sequence[str] = ()) -> list[Run]:
    """The runs in the order in which they are done: by seed, method (the config's order), cell.

    ``only`` keeps those that it names: data sets, skews, labels of methods, ``seed~0``. Names of
    one kind are alternatives, kinds restrict each other. Raises ``ValueError`` for other words.
    """
    clients = config.federation.clients
    folder = config.root / filled(RUNS, experiment=config.experiment)
    named = _kinds(config, only)
    runs = []
    for seed, method, dataset, setting in itertools.product(
        config.seeds, config.methods, config.datasets, config.settings
    ):
        place = (dataset, setting, method.label, f"seed~{seed}")
        identity = config.identity(dataset, setting, method, seed)
        if all(not words or part in words for part, words in zip(place, named, strict=True)):
            runs.append(
                Run(
                    config=config.run(dataset, setting, method, seed),
                    source=config.source(dataset),
                    identity=identity,
                    backbone=backbone_file(config),
                    partition=config.root / partition_of(dataset, clients, setting, seed),
                    folder=folder / run_below({**identity, "method": method.label}),
                    store=store,
                    checkpoint_seconds=config.checkpoint_seconds,
                )
            )
    return runs


def _kinds(config: Config, only: Sequence[str]) -> list[set[str]]:
    """The words of ``only`` by kind: data sets, skews, labels, seeds."""
    kinds = [
        list(config.datasets),
        list(config.settings),
        [method.label for method in config.methods],
        [f"seed~{seed}" for seed in config.seeds],
    ]
    known = [word for kind in kinds for word in kind]
    for word in only:
        if word not in known:
            raise ValueError(f"--only: {word!r} names nothing of the grid{hint(word, known)}")
    return [{word for word in only if word in kind} for kind in kinds]


def is_finished(
    run: Run, partition: str, backbone: str | None, say: Callable[[str], None] = lambda _: None
) -> bool:
    """Whether the records of this very run are in place, each file as it was written.

    It is the run of the same address in the store: config, data, backbone, code and libraries.
    ``say`` gets a line if a file has changed.
    """
    records = (*RUN_FILES, *((MODELS,) if run.config.training.save else ()))
    if not all((run.folder / file).is_file() for file in records):
        return False
    if (fault := files.changed_file(run.folder)) is not None:
        say(f"{fault}; the run is made again")
        return False
    result, provenance = (
        files.read_json(run.folder / name) for name in ("result.json", "provenance.json")
    )
    wanted = {**run.identity, "status": "ok"}
    same = all(result.get(key) == value for key, value in wanted.items())
    key = address_of(run, partition, backbone).key
    return bool(same and provenance.get("address") == key)


def address_of(run: Run, partition: str, backbone: str | None) -> Address:
    """Where the run lies in the store."""
    return Address(run.config.hash, partition, backbone, source_hash(run.config))
