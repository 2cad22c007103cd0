"""A run of an experiment, and where everything that it needs lies."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsdg.config.backbones import Backbone
from fedsdg.config.config import Config
from fedsdg.config.run import Run
from fedsdg.data.sources import Source
from fedsdg.experiment.store import RESULT, library_versions
from fedsdg.files import HASHES, read_json

RESULTS = Path("results")
"""The folder of backbones, partitions and runs."""


@dataclass(frozen=True)
class Task:
    """One run, and where everything that it needs lies."""

    run: Run
    source: str | Source
    "its data set: a name, or a description of a user's own images"
    partition: Path
    backbone: Path | None
    "its weights; None if all parameters are trained"
    recipe: Backbone
    "how they are made"
    folder: Path | None
    "of its results; None: they are in the store alone"
    identity: Mapping[str, Any]
    "its names in `result.json`"
    checkpoint_seconds: float
    "time between checkpoints"

    @property
    def title(self) -> str:
        """Its name in progress lines."""
        return f"{self.run.dataset} {self.run.setting} {self.run.method.label} seed {self.run.seed}"

    def key(self, partition: str, backbone: str | None) -> str:
        """Return the run's address.

        Args:
            partition: The SHA-256 of its partition.
            backbone: The SHA-256 of its backbone, if it has one.
        """
        return self.run.key(partition, backbone or "", library_versions())

    def facts(self) -> dict[str, Any]:
        """Return what ``result.json`` says of the run before it has a result."""
        return {"config": self.run.complete(), **self.identity}


def is_record_of(record: Mapping[str, Any], run: Run, backbone: str | None) -> bool:
    """Return whether a run would come out as recorded: config, plugins and versions are the same.

    Args:
        record: A ``result.json``, or a row of runs.parquet.
        run: The run as its config describes it now.
        backbone: The SHA-256 of its backbone; None: unknown, so that of the record.
    """
    if record.get("status") != "ok":  # A failed run has no address.
        return bool(record.get("config") == run.complete())
    known = record["backbone_hash"] if backbone is None else backbone
    key = run.key(record["partition_hash"], known or "", library_versions())
    return bool(record.get("address") == key)  # The first records have none.


def is_current(folder: Path, run: Run, backbone: str | None) -> bool:
    """Return whether a run's folder, if it is there, is whole and ``is_record_of`` the run.

    Args:
        folder: The folder.
        run: The run as its config describes it now.
        backbone: As for ``is_record_of``.
    """
    if not all((folder / name).is_file() for name in (HASHES, RESULT)):
        return not folder.exists()
    return is_record_of(read_json(folder / RESULT), run, backbone)


def task_of(config: Config, run: Run, results: Path = RESULTS) -> Task:
    """Return a run with its files.

    Args:
        config: Its config.
        run: One of the config's, or with other values.
        results: The folder of backbones, partitions and runs.
    """
    clients = f"clients~{run.federation.clients}"
    partition = f"{run.dataset}/{clients}/{run.skew}/seed~{run.partition_seed}.parquet"
    weights = results / "backbones" / f"{config.backbone}.safetensors"
    return Task(
        run=run,
        source=config.sources[run.dataset],
        partition=results / "partitions" / partition,
        backbone=None if config.trainable == "full" else weights,
        recipe=config.backbones[config.backbone],
        folder=results / "runs" / config.experiment / run.folder,
        identity=run.identity(config.experiment),
        checkpoint_seconds=config.checkpoint_seconds,
    )


def tasks_of(config: Config, results: Path = RESULTS) -> Iterator[Task]:
    """Yield the runs of the grid, seed by seed, so that the first seed is complete first.

    Args:
        config: The config.
        results: The folder of backbones, partitions and runs.
    """
    return (task_of(config, run, results) for run in config.runs())
