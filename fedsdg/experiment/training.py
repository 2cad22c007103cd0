"""Training is one loop over rounds, which begins at the newest checkpoint.

A run that was killed or stopped goes on from there, and ends as an undisturbed run does.
"""

import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fedsdg.data.partition import Partition
from fedsdg.experiment.building import build
from fedsdg.experiment.gpu import repeatable, threads
from fedsdg.experiment.interruption import Stopped, stopped_by_signals
from fedsdg.experiment.material import Material
from fedsdg.experiment.runs import Task
from fedsdg.experiment.store import store_folder
from fedsdg.federation import rounds
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.federation.records import COLUMNS
from fedsdg.federation.rounds import RoundRecord
from fedsdg.federation.setup import Server, Setup
from fedsdg.federation.store import ClientStore
from fedsdg.files.columns import Column

Progress = Callable[[Mapping[str, Any]], None]
"""Called after each round with its record."""


@dataclass
class Records:
    """The rows of a run's tables so far, in JSON's types."""

    rounds: list[dict[str, Any]] = field(default_factory=list)
    clients: list[dict[str, Any]] = field(default_factory=list)
    timings: list[dict[str, Any]] = field(default_factory=list)
    columns: tuple[Column, ...] = ()
    "declared columns beyond those that every run has"

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows by table."""
        return {"rounds": self.rounds, "clients": self.clients, "timings": self.timings}

    def extend(self, tables: Mapping[str, list[dict[str, Any]]]) -> None:
        """Append rows by table."""
        for name, rows in self.tables().items():
            rows += tables[name]

    def add(self, record: RoundRecord) -> None:
        """Append the rows of a round."""
        self.rounds.append(record.round)
        self.clients += record.clients
        self.timings.append(record.timings)


@dataclass
class Cost:
    """What a run has cost, over all processes that worked on it."""

    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    wall_before: float = 0.0
    cpu_before: float = 0.0
    resumed_after: list[int] = field(default_factory=list)
    "the rounds after which it was resumed"
    clock: float = field(default_factory=time.perf_counter)
    busy: float = field(default_factory=time.process_time)

    def facts(self) -> dict[str, Any]:
        """Return start, seconds, and the rounds after which the run was resumed."""
        return {
            "started": self.started,
            "wall_seconds": self.wall_before + time.perf_counter() - self.clock,
            "cpu_seconds": self.cpu_before + time.process_time() - self.busy,
            "resumed_after": self.resumed_after,
        }

    def resume(self, saved: Mapping[str, Any], done: int) -> None:
        """Add what earlier processes spent on the rounds that are done."""
        self.started = saved["started"]
        self.wall_before = saved["wall_seconds"]
        self.cpu_before = saved["cpu_seconds"]
        self.resumed_after = [*saved["resumed_after"], done]


@dataclass
class Training:
    """A federation between two rounds, with the records of those that are done."""

    setup: Setup
    server: Server
    store: ClientStore
    records: Records
    cost: Cost

    @property
    def done(self) -> int:
        """The number of rounds that are done."""
        return len(self.records.rounds)

    def facts(self) -> dict[str, Any]:
        """Return what the run has cost, and how many clients are trained together."""
        return {**self.cost.facts(), "clients_per_pass": self.setup.batcher.clients_per_pass}

    def save(self, checkpoints: Checkpoints) -> None:
        """Save the state after the last round that is done.

        Raises:
            OSError: The file cannot be written.
        """
        content = {**self.records.tables(), "cost": self.facts()}
        checkpoints.save(self.done, self.setup, self.server, self.store, content)

    def restore(self, checkpoints: Checkpoints) -> None:
        """Go on from the newest checkpoint, if there is one."""
        restored = checkpoints.restore(self.setup, self.server, self.store)
        if restored is None:
            return
        done, self.server, saved = restored
        self.records.extend(saved)
        self.cost.resume(saved["cost"], done)
        self.setup.batcher.clients_per_pass = saved["cost"]["clients_per_pass"]
        _say(f"going on after round {done} from the checkpoint in {checkpoints.folder}")


def train(
    task: Task,
    material: Material,
    partition: Partition,
    key: str,
    records: Records,
    progress: Progress = lambda _: None,
    trace: int = 0,
) -> Training:
    """Train a run from its newest checkpoint to its last round.

    The state is saved between two rounds, at a signal and from time to time; when it is saved
    changes no result. A run that fails by itself (a part, a loss that is not finite) loses its
    checkpoints and starts anew next time; one that the machine failed (memory, disk, device) keeps
    them.

    Args:
        task: The run.
        material: Images and backbone.
        partition: Which client holds which sample.
        key: The run's address; its folder of checkpoints is held by the caller.
        records: Empty; it is filled round by round, so that a run that fails still shows how far it
            came.
        progress: Called after each round with its record.
        trace: Print losses, penalties and gates of each batch whose number it divides; 0: none.

    Returns:
        The federation after its last round.

    Raises:
        Stopped: A signal ended the run; its state is saved.
        ValueError: A part cannot work, or tried to end the program.
        FloatingPointError: A loss is not finite.
        MemoryError: Not even one client fits into memory.
    """
    settings = task.run.training
    folder = store_folder("checkpoints")
    checkpoints = Checkpoints(folder / key, {"address": key, "config": task.run.overrides()})
    with (
        threads(settings.threads),
        repeatable(material.samples.images.device, tf32=settings.precision == "tf32"),
    ):
        setup = _without_exit(lambda: build(task.run, material, partition, trace=trace))
        # What clients keep lies beside the checkpoints if it is too large for the memory.
        training = Training(setup, *setup.initial(folder), records, Cost())
        records.columns = (*setup.declared_columns, *COLUMNS)
        training.restore(checkpoints)
        try:
            _run_rounds(training, checkpoints, task.checkpoint_seconds, progress)
        except (ValueError, FloatingPointError):
            checkpoints.remove()
            raise
    for observer in setup.observers:
        observer.complete(records.rounds, records.clients)
    return training


def _run_rounds(
    training: Training, checkpoints: Checkpoints, seconds: float, progress: Progress
) -> None:
    """Run the rounds that are left, with a checkpoint from time to time and at a signal."""
    setup = training.setup
    saver = _Saver(training, checkpoints)
    with stopped_by_signals(at_once=False) as check:
        try:
            for server, record in rounds.run(setup, training.server, training.store, training.done):
                training.server = server
                training.records.add(record)
                progress(record.round)
                check()
                if training.done < setup.schedule.rounds and checkpoints.due(seconds):
                    saver.save()
        except Stopped as stop:
            sentence = "stopped; the same command starts anew"
            if saver.save():
                sentence = f"stopped; the same command goes on after round {training.done}"
            raise Stopped(stop.args[0], sentence) from None


class _Saver:
    """Saves checkpoints; a full disk is mentioned once, and the run goes on."""

    def __init__(self, training: Training, checkpoints: Checkpoints) -> None:
        self._training = training
        self._checkpoints = checkpoints
        self._complained = False

    def save(self) -> bool:
        """Save the state, and return whether that was possible."""
        try:
            self._training.save(self._checkpoints)
        except OSError as error:
            if not self._complained:
                _say(
                    f"no checkpoint could be saved in {self._checkpoints.folder} ({error}); the "
                    "run goes on, and would be resumed from an earlier one"
                )
            self._complained = True
            return False
        return True


def _without_exit(make: Callable[[], Setup]) -> Setup:
    """Return the federation; raise ValueError if a part tries to end the program."""
    try:
        return make()
    except SystemExit as error:
        if error.code == 128 + signal.SIGTERM:  # a signal ends the process
            raise
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        raise ValueError(
            f"before the first round: {frame.f_code.co_qualname} tried to end the program; let it "
            "raise an error"
        ) from error


def _say(sentence: str) -> None:
    print(f"fedsdg: {sentence}", file=sys.stderr, flush=True)
