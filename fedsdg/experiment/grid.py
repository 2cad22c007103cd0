"""Runs side by side: what they need is made first, and what is finished is never done again.

A run is one task of a worker pool. Runs are done seed by seed, so that the first seed of every
method is complete before the second begins.
"""

import contextlib
import operator
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedsdg.config.config import Config
from fedsdg.config.plugins import DATASETS
from fedsdg.data.sources import Source
from fedsdg.errors import require_one_of
from fedsdg.experiment.backbones import backbone, backbone_sha256
from fedsdg.experiment.interruption import Stopped, stopped_by_signals
from fedsdg.experiment.progress import Progress
from fedsdg.experiment.runs import RESULTS, Task, tasks_of
from fedsdg.experiment.store import is_current
from fedsdg.experiment.workers import Note, environments, run_tasks


class Prepared(NamedTuple):
    """What a run needs besides its images."""

    partition: str
    "SHA-256"
    backbone: str | None
    "SHA-256; None if all parameters are trained"
    notes: list[str]
    "on the user's own data"


@dataclass(frozen=True)
class Runner:
    """Does runs of a config in worker processes."""

    config: Config
    environments: list[dict[str, str]]
    "of the workers"
    results: Path
    "the folder of backbones, partitions and runs"
    progress: Progress
    deadline: float | None
    "the time of the monotonic clock after which no run is started"

    def keys(self, tasks: Sequence[Task]) -> list[str]:
        """Make the partitions and the backbone of runs, and return the addresses of the runs.

        Raises:
            ValueError: The backbone, a data set or a partition cannot be had.
        """
        # A process keeps the images of one data set.
        in_order = sorted(tasks, key=lambda task: task.run.dataset)
        distinct = {task.partition: task for task in in_order}
        prepared = {}
        workers = (self.environments, self.config.plugins)
        with closing(run_tasks(prepare, distinct.values(), *workers)) as outcomes:
            for task, outcome in outcomes:
                if isinstance(outcome, RuntimeError):
                    raise ValueError(str(outcome))
                prepared[task.partition] = outcome
        for note in sorted({note for one in prepared.values() for note in one.notes}):
            self.progress.say(note)
        return [task.key(*prepared[task.partition][:2]) for task in tasks]

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, str | None]]:
        """Yield runs as they end, whose partitions and backbone are made.

        Each comes with the sentence of its failure, or None.
        """
        workers = (self.environments, self.config.plugins, self.progress.round, self.deadline)
        with closing(run_tasks(_execute, tasks, *workers)) as outcomes:
            for task, outcome in outcomes:
                if isinstance(outcome, RuntimeError):  # A killed worker could not record it.
                    from fedsdg.experiment.execution import record_failure

                    outcome = record_failure(task, outcome, task.facts())
                self.progress.finish(task, outcome)
                yield task, outcome


@contextlib.contextmanager
def runner(
    config: Config, title: str, results: Path, jobs: int, minutes: float | None
) -> Iterator[Runner]:
    """Yield a runner, and say at the end how many runs there was no time for.

    SIGINT and SIGTERM raise ``Stopped`` with a sentence on what is kept.

    Args:
        config: The config of the runs.
        title: The first word of each line of progress.
        results: The folder of backbones, partitions and runs.
        jobs: The number of runs side by side.
        minutes: No run is started after this time.
    """
    training = config.training
    workers = environments(training.device, training.threads, jobs)
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    with closing(Progress(title)) as progress:
        try:
            with stopped_by_signals():
                yield Runner(config, workers, results, progress, deadline)
        except Stopped as stop:
            kept = "no run had begun"
            if progress.runs:
                finished = f"{progress.finished_runs} of {progress.runs} runs are finished"
                kept = f"{finished}, and the rounds that others had done are saved"
            sentence = f"stopped: {kept}; the same command goes on from there"
            raise Stopped(stop.args[0], sentence) from None
        if unfinished := progress.runs - progress.finished_runs:
            progress.say(f"{unfinished} runs are left; give the same command to go on")


def run_grid(
    config: Config,
    results: Path = RESULTS,
    *,
    jobs: int = 1,
    only: Sequence[str] = (),
    minutes: float | None = None,
    done: Container[str] = (),
) -> list[str]:
    """Do the runs of a grid that are not done yet.

    Args:
        config: The config.
        results: The folder of backbones, partitions and runs.
        jobs: The number of runs side by side.
        only: The names that choose runs: data sets, settings, labels, `seed~0`; none: all.
        minutes: No run is started after this time.
        done: Folders of runs that are not needed.

    Returns:
        A line for each run that failed.

    Raises:
        ValueError: A word of `only` names nothing of the grid; or the backbone, a data set or a
            partition cannot be had.
        Stopped: A signal ended it; what was done is saved.
    """
    wanted = [task for task in tasks_of(config, results) if task.run.folder not in done]
    tasks = selected(wanted, only)
    with runner(config, config.experiment, results, jobs, minutes) as runs:
        keys = runs.keys(tasks)
        left = [
            task
            for task, key in zip(tasks, keys, strict=True)
            if task.folder is None or not is_current(key, task.folder, task.identity)
        ]
        finished = len(tasks) - len(left)
        runs.progress.start(left, finished)
        runs.progress.say(f"{len(tasks)} runs, {finished} of them finished before")
        ended = runs.run(left)
        return [f"{task.title}: {failure}" for task, failure in ended if failure is not None]


def run_here(config: Config, task: Task, trace: int = 0) -> str | None:
    """Do one run in this process; the partition and the backbone that it lacks are made.

    Args:
        config: Its config.
        task: The run.
        trace: Print losses, penalties and gates of each batch whose number it divides; 0: none.

    Returns:
        None if the run succeeded, else the sentence of its failure, which is recorded.

    Raises:
        Stopped: A signal ended the run; its state is saved.
        FileNotFoundError: The data set is not there.
        ValueError: The data set cannot be divided like this.
    """
    from fedsdg.experiment.execution import execute
    from fedsdg.experiment.material import load_images, load_material

    # An earlier run of this process may have read other images or weights from the same files.
    load_images.cache_clear()
    load_material.cache_clear()
    with closing(Progress(config.experiment)) as progress:
        for note in prepare(task).notes:
            progress.say(note)
        progress.start([task], 0)
        failure = execute(task, lambda record: progress.round(task, record), trace=trace)
        progress.finish(task, failure)
    return failure


def selected(tasks: Sequence[Task], only: Sequence[str]) -> list[Task]:
    """Return the tasks that words name: names of one kind are alternatives, kinds restrict.

    Args:
        tasks: All tasks of a grid.
        only: Data sets, settings, labels of methods, `seed~0`.

    Raises:
        ValueError: A word names nothing.
    """
    kinds = [set(names) for names in zip(*map(_names, tasks), strict=True)]
    known = sorted(set().union(*kinds))
    for word in only:
        require_one_of(known, word, "--only: the grid has nothing called")
    chosen = [names & set(only) or names for names in kinds]
    return [task for task in tasks if all(map(operator.contains, chosen, _names(task)))]


def _names(task: Task) -> tuple[str, str, str, str]:
    run = task.run
    return (run.dataset, run.setting, run.method.label, f"seed~{run.seed}")


# In workers, which import torch when they have something to do.


def prepare(task: Task, _note: Note | None = None) -> Prepared:
    """Make the partition and then the backbone of a run, unless they are there.

    Args:
        task: The run.
        _note: A worker gives it, and it is not used.
    """
    from fedsdg.experiment.material import get_or_make, load_images

    # First of all, so that what cannot be had or divided is known before anything is trained.
    is_own = isinstance(task.source, Source) or task.source in DATASETS
    own = load_images(task.source) if is_own else None
    partition = get_or_make(task, own)
    sha256 = None
    if task.backbone is not None:
        seconds = task.checkpoint_seconds
        name = task.run.backbone
        weights = backbone(name, task.recipe, task.backbone, checkpoint_seconds=seconds)
        sha256 = backbone_sha256(weights)
    notes = [f"{task.run.dataset}: {note}" for note in own.notes] if own is not None else []
    return Prepared(partition.sha256, sha256, notes)


def _execute(task: Task, note: Note) -> str | None:
    from fedsdg.experiment.execution import execute

    return execute(task, note)
