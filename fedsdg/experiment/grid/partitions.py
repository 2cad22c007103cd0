"""The partitions that runs need, each made once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedsdg.data.partition_spec import PartitionSettings
from fedsdg.experiment.config import Config
from fedsdg.experiment.grid.loaded import loaded_images
from fedsdg.experiment.grid.outcomes import needed
from fedsdg.experiment.grid.runs import Run
from fedsdg.experiment.machine.processes import Note, Workers
from fedsdg.experiment.machine.progress import GridProgress
from fedsdg.experiment.run_config import RunConfig

if TYPE_CHECKING:
    from fedsdg.data.datasets import ImageData
    from fedsdg.data.partition_record import Partition
    from fedsdg.experiment.loading import Source


@dataclass(frozen=True)
class Division:
    """One partition to be made; ``source`` is what its data set is loaded by."""

    dataset: str
    source: Source
    clients: int
    skew: str
    seed: int
    settings: PartitionSettings
    file: Path


def division_of(run: RunConfig, source: Source, file: Path) -> Division:
    """The partition that a run needs, in the file that it belongs to."""
    return Division(
        run.dataset, source, run.federation.clients, run.skew, run.seed, run.partition, file
    )


def kept_or_made(task: Division, load: Callable[[Source], ImageData] | None = None) -> Partition:
    """The partition in its file where it is this one, else made anew and written there.

    One's own data are looked at: they may have changed, as may what the config says of them.
    ``load`` gives the images, ``loaded_images`` where it is left out.
    """
    from fedsdg.data.partition_files import read_partition, write_partition
    from fedsdg.experiment.material import make_partition

    load = load or loaded_images
    with contextlib.suppress(FileNotFoundError, ValueError):  # none, or a damaged one
        there = read_partition(task.file)
        facts = (there.dataset, there.num_clients, there.skew, there.seed)
        spec = replace(there.spec, **asdict(task.settings))
        same = facts == (task.dataset, task.clients, task.skew, task.seed) and spec == there.spec
        if same and not isinstance(task.source, str):
            same = there.dataset_sha256 == load(task.source).sha256
        if same:
            return there
    made = make_partition(load(task.source), task.skew, task.seed, task.clients, task.settings)
    write_partition(made, task.file)
    return made


def make_partitions(
    config: Config, runs: Sequence[Run], workers: Workers, progress: GridProgress
) -> dict[Path, str]:
    """File -> hash of every partition that the runs need."""
    wanted = {run.partition: run for run in runs}
    divisions = [division_of(run.config, run.source, file) for file, run in wanted.items()]
    # One data set after another: a process keeps the images of one.
    divisions.sort(key=lambda division: config.datasets.index(division.dataset))
    found = {}
    for division, outcome in workers.map(_partition, divisions):
        found[division.file] = str(needed(outcome, f"partition {division.file}"))
    progress.say(f"{len(found)} partitions")
    return found


def _partition(task: Division, note: Note) -> str:
    return kept_or_made(task).sha256
