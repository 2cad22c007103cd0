"""Training is one loop over rounds, which begins at the newest checkpoint.

A run that was killed or stopped goes on from there, and ends as an undisturbed run does.
"""

import sys
import time
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

    def add(self, record: RoundRecord) -> None:
        """Append the rows of a round."""
        self.rounds.append(record.round)
        self.clients += record.clients
        self.timings.append(record.timings)


@dataclass
class Training:
    """A federation between two rounds, with the records of those that are done."""

    setup: Setup
    server: Server
    store: ClientStore
    records: Records
    checkpoints: Checkpoints
    seconds: float = 0.0
    "spent by earlier processes on the rounds that are done"
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    resumed_after: list[int] = field(default_factory=list)
    "the rounds after which it was resumed"
    unsaved: str = ""
    "why no checkpoint could be saved"
    _clock: float = field(default_factory=time.perf_counter)

    @property
    def done(self) -> int:
        """The number of rounds that are done."""
        return len(self.records.rounds)

    def facts(self) -> dict[str, Any]:
        """Return what the run has cost, and how many clients are trained together."""
        return {
            "started": self.started,
            "wall_seconds": self.seconds + time.perf_counter() - self._clock,
            "resumed_after": self.resumed_after,
            "clients_per_pass": self.setup.batcher.clients_per_pass,
        }

    def save(self) -> bool:
        """Save the state after the last round that is done, and return whether that was possible.

        A full disk is mentioned once, and the run goes on.
        """
        records = self.records
        tables = {name: getattr(records, name) for name in ("rounds", "clients", "timings")}
        try:
            self.checkpoints.save(
                self.done, self.setup, self.server, self.store, {**tables, "facts": self.facts()}
            )
        except OSError as error:
            if not self.unsaved:
                _say(
                    f"no checkpoint could be saved in {self.checkpoints.folder} ({error}); the run "
                    "goes on, and would be resumed from an earlier one"
                )
            self.unsaved = str(error)
            return False
        return True

    def restore(self) -> None:
        """Go on from the newest checkpoint, if there is one."""
        restored = self.checkpoints.restore(self.setup, self.server, self.store)
        if restored is None:
            return
        done, self.server, saved = restored
        for name in ("rounds", "clients", "timings"):
            getattr(self.records, name).extend(saved[name])
        facts = saved["facts"]
        self.started = facts["started"]
        self.seconds = facts["wall_seconds"]
        self.resumed_after = [*facts["resumed_after"], done]
        self.setup.batcher.clients_per_pass = facts["clients_per_pass"]
        _say(f"going on after round {done} from the checkpoint in {self.checkpoints.folder}")

    def run(self, checkpoint_seconds: float, progress: Progress) -> None:
        """Run the rounds that are left, with a checkpoint from time to time and at a signal.

        Args:
            checkpoint_seconds: Time between checkpoints.
            progress: Called after each round with its record.

        Raises:
            Stopped: A signal ended the run.
        """
        setup = self.setup
        with stopped_by_signals(at_once=False) as check:
            try:
                for server, record in rounds.run(setup, self.server, self.store, self.done):
                    self.server = server
                    self.records.add(record)
                    progress(record.round)
                    check()
                    due = self.done < setup.schedule.rounds
                    if due and self.checkpoints.due(checkpoint_seconds):
                        self.save()
            except Stopped as stop:
                after = f"goes on after round {self.done}" if self.save() else "starts anew"
                raise Stopped(stop.args[0], f"stopped; the same command {after}") from None


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
        key: The run's address; its checkpoints are the caller's alone.
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
        setup = build(task.run, material, partition, trace=trace)
        # What clients keep lies beside the checkpoints if it is too large for the memory.
        training = Training(setup, *setup.initial(folder), records, checkpoints)
        records.columns = (*setup.declared_columns, *COLUMNS)
        training.restore()
        try:
            training.run(task.checkpoint_seconds, progress)
        except (ValueError, FloatingPointError):
            checkpoints.remove()
            raise
    for observer in setup.observers:
        observer.complete(records.rounds, records.clients)
    return training


def _say(sentence: str) -> None:
    print(f"fedsdg: {sentence}", file=sys.stderr, flush=True)
