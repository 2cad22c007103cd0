"""The config as runs, grids and searches read it; the only module here that knows its form."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedsdg.experiment.backbones.made import is_made, take_recorded
from fedsdg.experiment.config import Config
from fedsdg.experiment.grid.runs import backbone_file
from fedsdg.experiment.loading import Source
from fedsdg.experiment.method_entries import MethodConfig
from fedsdg.experiment.run_config import RunConfig
from fedsdg.experiment.search.trials import resolved, searched_settings
from fedsdg.experiment.search_space import Choices
from fedsdg.files import read_json, sha256_json
from fedsdg.files.places import RUNS, filled, partition_of, run_below
from fedsdg.experiment.store import library_versions, store_folder

NUMERICS = 1
"""Raised by hand when the same config no longer gives the same numbers."""


@dataclass(frozen=True)
class Interval:
    """The values from low to high, evenly spread over their logarithm or as they are."""

    low: float
    high: float
    log: bool
    whole: bool = False


@dataclass(frozen=True)
class Task:
    """One run, and where everything that it needs lies."""

    run: RunConfig
    source: Source
    "by which its data set is loaded"
    partition: Path
    backbone: Path | None
    "None if all parameters are trained"
    folder: Path | None
    "of its results; None: the store alone has them"
    identity: Mapping[str, Any]
    "its names in `result.json`"
    checkpoint_seconds: float
    "time between checkpoints"

    @property
    def title(self) -> str:
        """Its name in progress lines."""
        names = self.identity
        return f"{names['dataset']} {names['skew']} {names['label']} seed {names['seed']}"

    def key(self, partition: str, backbone: str | None) -> str:
        """Return the run's address, given the SHA-256 of its partition and of its backbone."""
        facts = [self.run.to_dict(), partition, backbone, NUMERICS, library_versions()]
        return sha256_json(facts)

    def facts(self) -> dict[str, Any]:
        """Return what ``result.json`` says of the run before it has a result."""
        return {"config": self.run.to_dict(), "config_hash": self.run.hash, **self.identity}


def task_of(
    config: Config,
    dataset: str,
    setting: str,
    method: MethodConfig,
    seed: int,
) -> Task:
    """Return one run of a config, whose results lie where the grid has them."""
    identity = config.identity(dataset, setting, method, seed)
    runs = config.root / filled(RUNS, experiment=config.experiment)
    clients = config.federation.clients
    return Task(
        run=config.run(dataset, setting, method, seed),
        source=config.source(dataset),
        partition=config.root / partition_of(dataset, clients, setting, seed),
        backbone=backbone_file(config),
        folder=runs / run_below({**identity, "method": method.label}),
        identity=identity,
        checkpoint_seconds=config.checkpoint_seconds,
    )


def tasks_of(config: Config) -> Iterator[Task]:
    """Yield the runs of the grid, seed by seed, so that the first seed is complete first."""
    for seed, method, dataset, setting in itertools.product(
        config.seeds, config.methods, config.datasets, config.settings
    ):
        yield task_of(config, dataset, setting, method, seed)


def trial_tasks(
    config: Config, label: str, values: Mapping[str, Any], seed: int, *, share: float
) -> list[Task]:
    """Return the runs of a trial: its values in every cell that the search counts.

    Args:
        config: The config, with bounds as numbers.
        label: The row's label.
        values: The trial's values.
        seed: The seed of all of its runs.
        share: The share of the rounds that are run.
    """
    method = config.method(label).with_values(values)
    tasks = []
    for dataset, setting in itertools.product(config.datasets, searched_settings(config)):
        task = task_of(config, dataset, setting, method, seed)
        federation = task.run.federation
        rounds = max(1, round(share * federation.rounds))
        # Only the last quarter is scored.
        scored = replace(
            federation, rounds=rounds, evaluate_at=None, evaluate_from=3 * rounds // 4 + 1
        )
        tasks.append(replace(task, run=replace(task.run, federation=scored), folder=None))
    return tasks


def with_bounds(config: Config) -> Config:
    """Return the config with every bound of a search range as a number."""
    return resolved(config)


def axes_of(config: Config, label: str) -> dict[str, Any]:
    """Return the search space of a row: parameter → tuple of choices, or interval."""
    space = config.search.space.get(label, {})
    return {
        name: axis.values
        if isinstance(axis, Choices)
        else Interval(axis.low, axis.high, axis.scale == "log", axis.integer)
        for name, axis in space.items()
    }


def backbone_hash(file: Path | None) -> str | None:
    """Return the SHA-256 of a backbone that is made."""
    return None if file is None else str(read_json(file.with_suffix(".json"))["sha256"])


def make_backbone(config: Config) -> None:
    """Make the backbone of a config unless its file is there or can be taken from the record."""
    file = backbone_file(config)
    if file is None:
        return
    recipe = config.backbones[config.backbone]
    if is_made(recipe, file) or take_recorded(config.backbone, recipe, file):
        return
    from fedsdg.experiment.backbones import pretraining

    pretraining.pretrain(
        recipe,
        file,
        checkpoints=store_folder("checkpoints"),
        checkpoint_seconds=config.checkpoint_seconds,
    )
