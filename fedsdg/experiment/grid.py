"""Runs side by side: what they need is made first, and what is finished is never done again.

A run is one task of a worker pool. Runs are done seed by seed, so that the first seed of every
method is complete before the second begins.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedsdg.experiment.config import Config
from fedsdg.errors import hint
from fedsdg.experiment.configured import Task, backbone_hash, make_backbone, tasks_of
from fedsdg.experiment.interruption import Stopped, stopped_by_signals
from fedsdg.experiment.progress import Progress
from fedsdg.experiment.store import is_current
from fedsdg.experiment.workers import Failed, Note, environments, run_tasks


class GridError(ValueError):
    """Something that many runs depend on cannot be had."""


def run_grid(
    config: Config, *, jobs: int = 1, only: Sequence[str] = (), minutes: float | None = None
) -> list[str]:
    """Do the runs of a grid that are not done yet.

    Args:
        config: The config.
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
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    tasks = selected(list(tasks_of(config)), only)
    places = _environments(config, jobs)
    failures = []
    with Progress(config.experiment) as progress, stopped_with_a_sentence(progress):
        keys = prepare(config, tasks, places, progress)
        left = [
            task
            for task, key in zip(tasks, keys, strict=True)
            if task.folder is None or not is_current(key, task.folder, task.identity)
        ]
        progress.start(left, len(tasks) - len(left))
        progress.say(f"{len(tasks)} runs, {len(tasks) - len(left)} of them finished before")
        done = 0
        with run_all(left, places, progress, deadline) as outcomes:
            for task, outcome in outcomes:
                failure = _recorded(task, outcome)
                progress.finish(task, failure)
                done += 1
                if failure is not None:
                    failures.append(f"{task.title}: {failure}")
        if done < len(left):
            progress.say(f"time is up: {len(left) - done} runs are left; call again to go on")
    return failures


def run_here(config: Config, task: Task, *, trace: int = 0) -> str | None:
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
    from fedsdg.experiment.partitions import get_or_make, loaded_images
    from fedsdg.experiment.runs import execute

    # First of all, so that what cannot be had or divided is known before anything is trained.
    get_or_make(task)
    with Progress(config.experiment) as progress:
        for note in loaded_images(task.source).notes:
            progress.say(note)
        make_backbone(config)
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
    kinds: list[set[str]] = [set(), set(), set(), set()]
    for task in tasks:
        for names, name in zip(kinds, _names(task), strict=True):
            names.add(name)
    known = sorted(set().union(*kinds))
    for word in only:
        if word not in known:
            raise ValueError(f"--only: {word!r} names nothing of the grid{hint(word, known)}")
    wanted = [names & set(only) or names for names in kinds]
    return [
        task
        for task in tasks
        if all(name in names for name, names in zip(_names(task), wanted, strict=True))
    ]


def _names(task: Task) -> tuple[str, str, str, str]:
    names = task.identity
    return (names["dataset"], names["skew"], names["label"], f"seed~{names['seed']}")


def _environments(config: Config, jobs: int) -> list[dict[str, str]]:
    return environments(config.training.device, config.training.threads, jobs)


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


def prepare(
    config: Config, tasks: Sequence[Task], places: list[dict[str, str]], progress: Progress
) -> list[str]:
    """Make the backbone and the partitions of runs, and return the address of each run.

    Args:
        config: The config of the runs.
        tasks: The runs.
        places: The environment of each worker.
        progress: Shows notes on the user's own data.

    Raises:
        GridError: The backbone, a data set or a partition cannot be had.
    """
    with run_tasks(_make_backbone, [config], places[:1]) as outcomes:
        for _, outcome in outcomes:
            if isinstance(outcome, Failed):
                raise GridError(f"backbone {config.backbone}: {outcome.message}")
    distinct = {task.partition: task for task in tasks}
    # A process keeps the images of one data set.
    in_order = sorted(distinct.values(), key=lambda task: task.run.dataset)
    hashes = {}
    notes: set[str] = set()
    with run_tasks(_make_partition, in_order, places[: len(in_order)]) as outcomes:
        for task, outcome in outcomes:
            if isinstance(outcome, Failed):
                raise GridError(f"partition {task.partition}: {outcome.message}")
            hashes[task.partition], about_data = outcome
            notes |= set(about_data)
    for note in sorted(notes):
        progress.say(note)
    return [task.key(hashes[task.partition], backbone_hash(task.backbone)) for task in tasks]


def run_all(
    tasks: Sequence[Task],
    places: list[dict[str, str]],
    progress: Progress,
    deadline: float | None = None,
) -> contextlib.AbstractContextManager[Iterator[tuple[Task, str | Failed | None]]]:
    """Yield an iterator over runs as they end, each with its outcome.

    The outcome is None, the sentence of a failure, or `Failed` if the worker was killed.

    Args:
        tasks: The runs, whose partitions and backbone are made.
        places: The environment of each worker.
        progress: Shows their rounds.
        deadline: The time of the monotonic clock after which no run is started.
    """
    in_time = (task for task in tasks if deadline is None or time.monotonic() < deadline)
    return run_tasks(_execute, in_time, places, progress.round)


def _recorded(task: Task, outcome: str | Failed | None) -> str | None:
    """Return the sentence of a failure; a worker that was killed could not record it."""
    if not isinstance(outcome, Failed):
        return outcome
    from fedsdg.experiment.runs import record_failure

    return record_failure(task, RuntimeError(outcome.message), task.facts())


# In workers, which import torch when they have something to do.


def _make_backbone(config: Config, _note: Note) -> None:
    make_backbone(config)


def _make_partition(task: Task, _note: Note) -> tuple[str, tuple[str, ...]]:
    from fedsdg.experiment.partitions import partition_hash

    return partition_hash(task)


def _execute(task: Task, note: Note) -> str | None:
    from fedsdg.experiment.runs import execute

    def report(record: Mapping[str, Any]) -> None:
        shown = ("round", "evaluated", "train_loss", "expected_accuracy", "val_accuracy")
        note({name: record.get(name) for name in shown})

    return execute(task, report)
