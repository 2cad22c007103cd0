"""A run of an experiment, and where everything that it needs lies."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsdg.config.backbones import Backbone
from fedsdg.config.config import Config
from fedsdg.config.data_sets import dataset_name
from fedsdg.config.run import Run
from fedsdg.data.sources import Source
from fedsdg.experiment.store import library_versions

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
        source=next(one for one in config.datasets if dataset_name(one) == run.dataset),
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
