"""The partitions that runs need, each made once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedsdg.data.partition import PartitionSettings
from fedsdg.experiment.config import Config
from fedsdg.experiment.grid.loaded import loaded_images
from fedsdg.experiment.grid.outcomes import needed
from fedsdg.experiment.grid.runs import Run
from fedsdg.experiment.machine.processes import Note, Workers
from fedsdg.experiment.machine.progress import GridProgress
from fedsdg.experiment.run_config import RunConfig

if TYPE_CHECKING:
    from fedsdg.data.datasets import ImageData
    from fedsdg.data.partition import Partition
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
        facts = {"test": "by-seed", **there.facts}
        asked = {"dataset": task.dataset, "num_clients": task.clients, "skew": task.skew}
        asked |= {"seed": task.seed, **asdict(task.settings)}
        same = facts | asked == facts
        if same and not isinstance(task.source, str):
            same = facts["dataset_sha256"] == load(task.source).sha256
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
    found: dict[Path, str] = {}
    told: set[str] = set()
    for division, outcome in workers.map(_partition, divisions):
        found[division.file], *notes = needed(outcome, f"partition {division.file}")
        for note in notes:
            if note not in told:
                progress.say(note)
            told.add(note)
    progress.say(f"{len(found)} partitions")
    return found


def _partition(task: Division, note: Note) -> list[str]:
    """The hash of the partition, and what is noted on images that are looked at anyway."""
    sha256 = kept_or_made(task).sha256
    notes = () if isinstance(task.source, str) else loaded_images(task.source).notes
    return [sha256, *(f"{task.dataset}: {text}" for text in notes)]
