"""The progress of many runs: one bar over all rounds on a terminal, plain lines in a log."""

import math
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from fedsdg.experiment.runs import Task

SHOWN = (
    ("loss", "train_loss"),
    ("accuracy", "expected_accuracy"),
    ("validation", "val_accuracy"),
)
"""The words for what is shown of an evaluated round, and its columns."""


class Progress:
    """Shows rounds and finished runs on standard error. To be used as a context."""

    def __init__(self, title: str) -> None:
        """Begin without a bar; `start` adds it.

        Args:
            title: The first word of each line.
        """
        self.finished_runs = 0
        self.runs = 0
        self._title = title
        self._on_terminal = sys.stderr.isatty()
        self._bar: tqdm[Any] = tqdm(disable=True)
        self._began = time.monotonic()
        self._last: dict[int, Mapping[str, Any]] = {}

    def __enter__(self) -> Self:
        """Return the progress."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the bar."""
        self._bar.close()

    def say(self, text: str) -> None:
        """Show a line above the bar."""
        tqdm.write(f"{self._title}: {text}", file=sys.stderr)
        sys.stderr.flush()

    def start(self, tasks: list[Task], finished: int) -> None:
        """Count to the rounds of further runs, some runs having been finished before."""
        self.runs += len(tasks) + finished
        self.finished_runs += finished
        total = (self._bar.total or 0) + sum(_rounds(task) for task in tasks)
        if self._bar.total is None:
            self._began = time.monotonic()
            self._bar = tqdm(unit="round", disable=not self._on_terminal)
        self._bar.total = total
        self._count()

    def round(self, task: Task, record: Mapping[str, Any]) -> None:
        """Show a round that a run has done."""
        # A resumed run does not begin with round 1.
        self._pass(record["round"] - self._last.get(id(task), {"round": 0})["round"])
        if record["evaluated"] or id(task) not in self._last:
            self._last[id(task)] = record
        else:
            self._last[id(task)] = {**self._last[id(task)], "round": record["round"]}
        self._bar.set_postfix_str(task.title, refresh=False)
        if not self._on_terminal and record["evaluated"]:
            self.say(f"{task.title}: round {record['round']}/{_rounds(task)} {_scores(record)}")

    def finish(self, task: Task, failure: str | None) -> None:
        """Show a run that is over, with the accuracy of its last round or its failure."""
        self.finished_runs += 1
        last = self._last.pop(id(task), {"round": 0})
        # Rounds that a failed run lacks, and those of a stored run, keep nobody waiting.
        self._pass(_rounds(task) - last["round"])
        self._count()
        outcome = failure or _scores(last) or "stored before"
        left = "" if self._on_terminal else self._time_left()
        self.say(f"[{self.finished_runs}/{self.runs}] {task.title}: {outcome}{left}")

    def _count(self) -> None:
        counted = f"{self._title} [{self.finished_runs}/{self.runs}]"
        self._bar.set_description(counted, refresh=False)

    def _pass(self, rounds: int) -> None:
        if self._bar.disable:  # It does not count then.
            self._bar.n += rounds
        self._bar.update(rounds)

    def _time_left(self) -> str:
        """Return what is left if it takes as long as what was done; nothing if it is unknown."""
        done, total = self._bar.n, self._bar.total or 0
        if not 0 < done < total:
            return ""
        seconds = (time.monotonic() - self._began) * (total - done) / done
        for unit, length in (("h", 3600), ("min", 60)):
            if seconds >= 1.5 * length:
                return f", about {seconds / length:.0f} {unit} left"
        return f", about {math.ceil(seconds)} s left"


def _rounds(task: Task) -> int:
    return int(task.run.federation.rounds)


def _scores(record: Mapping[str, Any]) -> str:
    return " ".join(
        f"{name}={record[column]:.3f}" for name, column in SHOWN if record.get(column) is not None
    )
