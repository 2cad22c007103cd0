"""A federation between two rounds, which is saved and goes on as if nothing had disturbed it."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Self

from fedsdg.errors import remark
from fedsdg.experiment.interruption import Stopped, stopped_by_signals
from fedsdg.federation import rounds
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.federation.setup import Setup
from fedsdg.files.columns import Column

Progress = Callable[[Mapping[str, Any]], None]
"""Called after each round with its record."""
TABLES = ("rounds", "clients", "timings")


@dataclass
class Records:
    """The rows of a run's tables so far, in JSON's types."""

    rounds: list[dict[str, Any]] = field(default_factory=list)
    clients: list[dict[str, Any]] = field(default_factory=list)
    timings: list[dict[str, Any]] = field(default_factory=list)
    columns: tuple[Column, ...] = ()
    "declared columns beyond those that every run has"


class Training:
    """A federation between two rounds, with the records of those that are done."""

    def __init__(
        self, setup: Setup, records: Records | None = None, scratch: Path | None = None
    ) -> None:
        """Stand before the first round.

        Args:
            setup: The federation.
            records: Empty; it is filled round by round. None: new ones.
            scratch: The folder of what clients keep, if it is too large for the memory.
        """
        self.setup = setup
        self.records = records or Records()
        self.server, self.store = setup.initial(scratch)
        self._clock = time.perf_counter()
        started = datetime.now(UTC).isoformat(timespec="seconds")
        self._before: dict[str, Any] = {"started": started, "wall_seconds": 0, "resumed_after": []}
        self._mentioned = False

    @property
    def done(self) -> int:
        """The number of rounds that are done."""
        return len(self.records.rounds)

    def facts(self) -> dict[str, Any]:
        """Return what the run has cost, and how many clients are trained together."""
        seconds = time.perf_counter() - self._clock
        return {
            **self._before,
            "wall_seconds": self._before["wall_seconds"] + seconds,
            "clients_per_pass": self.setup.batcher.clients_per_pass,
        }

    def rounds(self) -> Iterator[dict[str, Any]]:
        """Do the rounds that are left, and yield the record of each."""
        for server, record in rounds.run(self.setup, self.server, self.store, self.done):
            self.server = server
            self.records.rounds.append(record.round)
            self.records.clients += record.clients
            self.records.timings.append(record.timings)
            yield record.round

    def advance(self, most: int | None = None) -> Self:
        """Do the rounds that are left, or so many of them, and return itself."""
        for _ in islice(self.rounds(), most):
            pass
        return self

    def save(self, checkpoints: Checkpoints) -> bool:
        """Save the state after the last round that is done, and return whether that was possible.

        A full disk is mentioned once, and the run goes on.
        """
        saved = {name: getattr(self.records, name) for name in TABLES} | {"facts": self.facts()}
        try:
            checkpoints.save(self.done, self.setup, self.server, self.store, saved)
        except OSError as error:
            if not self._mentioned:
                remark(
                    f"no checkpoint could be saved in {checkpoints.folder} ({error}); the run "
                    "goes on, and would be resumed from an earlier one"
                )
            self._mentioned = True
            return False
        return True

    def restore(self, checkpoints: Checkpoints) -> None:
        """Go on from the newest checkpoint, if there is one."""
        restored = checkpoints.restore(self.setup, self.server, self.store)
        if restored is None:
            return
        done, self.server, saved = restored
        for name in TABLES:
            getattr(self.records, name).extend(saved[name])
        self._before = saved["facts"]
        self._before["resumed_after"].append(done)
        self.setup.batcher.clients_per_pass = self._before["clients_per_pass"]
        remark(f"going on after round {done} from the checkpoint in {checkpoints.folder}")

    def run(self, checkpoints: Checkpoints, seconds: float, progress: Progress) -> None:
        """Do the rounds after the newest checkpoint, with others from time to time and at a signal.

        When the state is saved changes no result. A run that fails by itself (a part, a loss that
        is not finite) loses its checkpoints and starts anew next time; one that the machine failed
        (memory, disk, device) keeps them.

        Args:
            checkpoints: Those of the run, which are the caller's alone.
            seconds: Time between checkpoints.
            progress: Called after each round with its record.

        Raises:
            Stopped: A signal ended the run; its state is saved.
            ValueError: A part cannot work, or tried to end the program.
            FloatingPointError: A loss is not finite.
            MemoryError: Not even one client fits into memory.
        """
        self.restore(checkpoints)
        with stopped_by_signals(at_once=False) as check:
            try:
                for record in self.rounds():
                    progress(record)
                    check()
                    if self.done < self.setup.schedule.rounds and checkpoints.due(seconds):
                        self.save(checkpoints)
            except Stopped as stop:
                saved = self.save(checkpoints)
                after = f"goes on after round {self.done}" if saved else "starts anew"
                raise Stopped(stop.args[0], f"stopped; the same command {after}") from None
            except (ValueError, FloatingPointError):
                checkpoints.remove()
                raise
