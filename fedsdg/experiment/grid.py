"""Runs side by side: what they need is made first, and what is finished is never done again.

A run is one task of a worker pool. Runs are done seed by seed, so that the first seed of every
method is complete before the second begins.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from fedsdg.config.backbones import Backbone
from fedsdg.config.config import Config
from fedsdg.errors import hint
from fedsdg.experiment.backbones import backbone, backbone_sha256
from fedsdg.experiment.interruption import Stopped, stopped_by_signals
from fedsdg.experiment.progress import SHOWN, Progress
from fedsdg.experiment.runs import RESULTS, Task, tasks_of
from fedsdg.experiment.store import is_current
from fedsdg.experiment.workers import Failed, Note, Pool, environments, run_tasks


class GridError(ValueError):
    """Something that many runs depend on cannot be had."""


def run_grid(
    config: Config,
    results: Path = RESULTS,
    *,
    jobs: int = 1,
    only: Sequence[str] = (),
    minutes: float | None = None,
) -> list[str]:
    """Do the runs of a grid that are not done yet.

    Args:
        config: The config.
        results: The folder of backbones, partitions and runs.
        jobs: The number of runs side by side.
        only: The names that choose runs: data sets, settings, labels, `seed~0`; none: all.
        minutes: No run is started after this time.

    Returns:
        A line for each run that failed.

    Raises:
        GridError: The backbone, a data set or a partition cannot be had.
        ValueError: A word of `only` names nothing of the grid.
        Stopped: A signal ended it; what was done is saved.
    """
    deadline = deadline_in(minutes)
    tasks = selected(list(tasks_of(config, results)), only)
    pool = pool_of(config, jobs)
    failures = []
    with Progress(config.experiment) as progress, stopped_with_a_sentence(progress):
        keys = prepare(config, tasks, pool, progress)
        left = [
            task
            for task, key in zip(tasks, keys, strict=True)
            if task.folder is None or not is_current(key, task.folder, task.identity)
        ]
        finished = len(tasks) - len(left)
        progress.start(left, finished)
        progress.say(f"{len(tasks)} runs, {finished} of them finished before")
        done = 0
        with run_all(left, pool, progress, deadline) as outcomes:
            for task, outcome in outcomes:
                failure = _recorded(task, outcome)
                progress.finish(task, failure)
                done += 1
                if failure is not None:
                    failures.append(f"{task.title}: {failure}")
        if done < len(left):
            progress.say(f"time is up: {len(left) - done} runs are left; call again to go on")
    return failures


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

    # First of all, so that what cannot be had or divided is known before anything is trained.
    _, notes = _make_partition(task)
    with Progress(config.experiment) as progress:
        for note in notes:
            progress.say(note)
        if task.backbone is not None:
            recipe = config.backbones[config.backbone]
            backbone(
                config.backbone,
                recipe,
                task.backbone,
                checkpoint_seconds=config.checkpoint_seconds,
            )
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
        if word not in known:
            raise ValueError(f"--only: {word!r} names nothing of the grid{hint(word, known)}")
    chosen = [names & set(only) or names for names in kinds]

    def is_chosen(task: Task) -> bool:
        return all(name in names for name, names in zip(_names(task), chosen, strict=True))

    return [task for task in tasks if is_chosen(task)]


def _names(task: Task) -> tuple[str, str, str, str]:
    run = task.run
    return (run.dataset, run.setting, run.method.label, f"seed~{run.seed}")


def deadline_in(minutes: float | None) -> float | None:
    """Return the time of the monotonic clock so many minutes from now; None: never."""
    return None if minutes is None else time.monotonic() + 60 * minutes


def pool_of(config: Config, jobs: int) -> Pool:
    """Return the workers of a config's runs, as many as there are jobs."""
    training = config.training
    return Pool(environments(training.device, training.threads, jobs), config.plugins)


@contextlib.contextmanager
def stopped_with_a_sentence(progress: Progress) -> Iterator[None]:
    """Let SIGINT and SIGTERM raise ``Stopped`` with a sentence on what is kept."""
    try:
        with stopped_by_signals():
            yield
    except Stopped as stop:
        raise Stopped(
            stop.args[0],
            f"stopped: {progress.finished_runs} of {progress.runs} runs are finished, and the "
            "rounds that others had done are saved; the same command goes on from there",
        ) from None


def prepare(config: Config, tasks: Sequence[Task], pool: Pool, progress: Progress) -> list[str]:
    """Make the backbone and the partitions of runs, and return the address of each run.

    Args:
        config: The config of the runs.
        tasks: The runs.
        pool: The workers.
        progress: Shows notes on the user's own data.

    Raises:
        GridError: The backbone, a data set or a partition cannot be had.
    """
    files = {task.backbone for task in tasks if task.backbone is not None}
    recipe = config.backbones[config.backbone]
    wanted = [(config.backbone, recipe, file, config.checkpoint_seconds) for file in files]
    backbones: dict[Path | None, str | None] = {None: None}
    with run_tasks(_make_backbone, wanted, pool) as outcomes:
        for (name, _, file, _), outcome in outcomes:
            if isinstance(outcome, Failed):
                raise GridError(f"backbone {name}: {outcome.message}")
            backbones[file] = outcome
    # A process keeps the images of one data set.
    distinct = {task.partition: task for task in sorted(tasks, key=lambda task: task.run.dataset)}
    partitions = {}
    notes: set[str] = set()
    with run_tasks(_make_partition, distinct.values(), pool) as outcomes:
        for task, outcome in outcomes:
            if isinstance(outcome, Failed):
                raise GridError(f"partition {task.partition}: {outcome.message}")
            partitions[task.partition], about_data = outcome
            notes.update(about_data)
    for note in sorted(notes):
        progress.say(note)
    return [task.key(partitions[task.partition], backbones[task.backbone]) for task in tasks]


def run_all(
    tasks: Sequence[Task], pool: Pool, progress: Progress, deadline: float | None = None
) -> AbstractContextManager[Iterator[tuple[Task, str | Failed | None]]]:
    """Yield an iterator over runs as they end, each with its outcome.

    The outcome is None, the sentence of a failure, or `Failed` if the worker was killed.

    Args:
        tasks: The runs, whose partitions and backbone are made.
        pool: The workers.
        progress: Shows their rounds.
        deadline: The time of the monotonic clock after which no run is started.
    """
    return run_tasks(_execute, tasks, pool, progress.round, deadline)


def _recorded(task: Task, outcome: str | Failed | None) -> str | None:
    """Return the sentence of a failure; a worker that was killed could not record it."""
    if not isinstance(outcome, Failed):
        return outcome
    from fedsdg.experiment.execution import record_failure

    return record_failure(task, RuntimeError(outcome.message), task.facts())


# In workers, which import torch when they have something to do.


def _make_backbone(wanted: tuple[str, Backbone, Path, float], _note: Note) -> str:
    """Return the SHA-256 of a backbone."""
    name, recipe, file, seconds = wanted
    return backbone_sha256(backbone(name, recipe, file, checkpoint_seconds=seconds))


def _make_partition(task: Task, _note: Note | None = None) -> tuple[str, list[str]]:
    """Return the SHA-256 of a run's partition, and notes on its data if they are the user's own."""
    from fedsdg.experiment.material import load_images
    from fedsdg.experiment.partitions import get_or_make

    sha256 = get_or_make(task).sha256
    notes = () if isinstance(task.source, str) else load_images(task.source).notes
    return sha256, [f"{task.run.dataset}: {note}" for note in notes]


def _execute(task: Task, note: Note) -> str | None:
    from fedsdg.experiment.execution import execute

    shown = ("round", "evaluated", *(column for _, column in SHOWN))

    def report(record: Mapping[str, Any]) -> None:
        note({name: record.get(name) for name in shown})

    return execute(task, report)
