"""Training a run so that it survives: from its newest checkpoint on, and keeping new ones."""

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsdg.experiment.machine.interruption import Stopped, stopped_by_signals
from fedsdg.federation import rounds
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.federation.setup import Setup
from fedsdg.files.columns import Column

Progress = Callable[[int, Mapping[str, Any]], None]
"""Called after each round with its number and its record."""


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


class Cost:
    """What a run has cost so far, over all processes that worked on it."""

    def __init__(self) -> None:
        """Begin to count."""
        self._clock = time.perf_counter()
        self._busy = time.process_time()
        self._before: dict[str, Any] = {
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "wall_seconds": 0.0,
            "cpu_seconds": 0.0,
            "resumed_after": [],
        }

    def resume(self, before: Mapping[str, Any], done: int) -> None:
        """Add what earlier processes have spent on the rounds that are done."""
        self._before = {**before, "resumed_after": [*before["resumed_after"], done]}

    def facts(self) -> dict[str, Any]:
        """Return start, seconds, and the rounds after which the run was taken up again."""
        wall = time.perf_counter() - self._clock
        busy = time.process_time() - self._busy
        return {
            **self._before,
            "wall_seconds": self._before["wall_seconds"] + wall,
            "cpu_seconds": self._before["cpu_seconds"] + busy,
        }


@contextlib.contextmanager
def held(checkpoints: Checkpoints) -> Iterator[Checkpoints | None]:
    """Hold the folder of checkpoints within the block.

    Yields:
        The checkpoints; None if another process is at the same run.

    Raises:
        OSError: The folder cannot be written to.
    """
    folder = checkpoints.folder
    with contextlib.ExitStack() as stack:
        own: Checkpoints | None = checkpoints
        try:
            stack.enter_context(checkpoints.held())
        except BlockingIOError:
            _say(
                f"another process is at the same run and holds {folder}; this one starts from the "
                "beginning"
            )
            own = None
        except OSError as error:
            # On a file system without locks it is the user's care that one process does a run.
            if not os.access(folder, os.W_OK):
                raise OSError(
                    error.errno,
                    f"the folder of checkpoints {folder} cannot be written to "
                    f"({error.strerror}); make it writable, or name another in FEDSDG_STORE",
                ) from None
        yield own


class ResumableTraining:
    """A run on its way to its last round, which goes on from its newest checkpoint.

    A run that fails by itself (a part, a loss that is not finite) loses its checkpoints and starts
    anew next time; one that the machine failed (memory, disk, device) keeps them.
    """

    def __init__(
        self,
        build: Callable[[], Setup],
        records: Records,
        checkpoints: Checkpoints | None,
        scratch: Path,
    ) -> None:
        """Put the federation together, as it is after the rounds that are done.

        Args:
            build: Puts it together as it is before the first round.
            records: Empty; it is filled round by round, so that a run that fails still shows how
                far it came.
            checkpoints: Those of the run, which are held; None: nothing is saved.
            scratch: The folder for what clients keep, if it is too large for the memory.

        Raises:
            ValueError: The run, or its checkpoint, does not go together.
        """
        self.records = records
        self.cost = Cost()
        self.setup = _without_exit(build)
        self.server, self.store = self.setup.initial(scratch)
        self.done = 0
        self._checkpoints = checkpoints
        self._complained = False
        records.columns = self.setup.declared_columns
        if checkpoints is None:
            return
        restored = checkpoints.restore(self.setup, self.server, self.store)
        if restored is not None:
            self.done, self.server, saved = restored
            records.extend(saved)
            self.cost.resume(saved["cost"], self.done)
            self.setup.batcher.clients_per_pass = saved["clients_per_pass"]
            _say(f"going on after round {self.done} from the checkpoint in {checkpoints.folder}")

    def run(self, seconds: float, progress: Progress) -> None:
        """Run the rounds that are left.

        The state is saved after the first round that ends so many seconds or more after it was
        last saved, and when SIGINT or SIGTERM ends the run after the round that it meets. When it
        is saved changes no result.

        Args:
            seconds: The time between checkpoints.
            progress: Called after each round.

        Raises:
            Stopped: A signal ended the run.
            ValueError: A part cannot work, or tried to end the program.
            FloatingPointError: A loss is not finite.
            MemoryError: Not even one client fits into memory.
        """
        setup = self.setup
        checkpoints = self._checkpoints
        with stopped_by_signals(at_once=False) as check:
            try:
                for after, record in rounds.run(setup, self.server, self.store, self.done):
                    self.server = after
                    self._add(record)
                    progress(self.done, record.round)
                    check()
                    last = self.done == setup.schedule.rounds
                    if checkpoints is not None and not last and checkpoints.due(seconds):
                        self._save(checkpoints)
            except Stopped as stop:
                sentence = "stopped; the same command starts anew"
                if checkpoints is not None and self._save(checkpoints):
                    sentence = f"stopped; the same command goes on after round {self.done}"
                raise Stopped(stop.args[0], sentence) from None
            except (ValueError, FloatingPointError):
                if checkpoints is not None:
                    checkpoints.remove()
                raise
        for observer in setup.observers:
            observer.complete(self.records.rounds, self.records.clients)

    def facts(self) -> dict[str, Any]:
        """Return what the run has cost, and how many clients are trained together."""
        return {**self.cost.facts(), "clients_per_pass": self.setup.batcher.clients_per_pass}

    def _add(self, record: rounds.RoundRecord) -> None:
        """Note a round that is done."""
        self.done = record.round["round"]
        self.records.rounds.append(record.round)
        self.records.clients += record.clients
        self.records.timings.append(record.timings)

    def _save(self, checkpoints: Checkpoints) -> bool:
        """Save the state, and return whether that was possible."""
        content = {
            **self.records.tables(),
            "cost": self.cost.facts(),
            "clients_per_pass": self.setup.batcher.clients_per_pass,
        }
        try:
            checkpoints.save(self.done, self.setup, self.server, self.store, content)
        except OSError as error:
            if not self._complained:  # a full disk would be mentioned after every round
                _say(
                    f"no checkpoint could be saved in {checkpoints.folder} ({error}); the run goes "
                    "on, and would be taken up from an earlier one"
                )
            self._complained = True
            return False
        return True


def _without_exit(build: Callable[[], Setup]) -> Setup:
    """Return the federation, or raise ValueError if a part tries to end the program."""
    try:
        return build()
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
