"""The progress of many runs: one bar over all rounds on a terminal, plain lines in a log."""

import os
import sys
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from fedsdg.experiment.runs import Task

SHOWN = (
    ("loss", "train_loss"),
    ("accuracy", "accuracy"),
    ("validation", "val_accuracy"),
)
"""The words for what is shown of an evaluated round, and its columns."""


class Progress:
    """Shows rounds and finished runs on standard error. To be closed at the end."""

    def __init__(self, title: str) -> None:
        """Begin without a bar; `start` adds it.

        Args:
            title: The first word of each line.
        """
        self.finished_runs = 0
        self.runs = 0
        self._title = title
        self._in_log = not sys.stderr.isatty()
        # Without a terminal it counts, and shows nothing.
        shown = open(os.devnull, "w") if self._in_log else sys.stderr  # noqa: SIM115
        self._bar = tqdm(unit="round", total=0, file=shown, leave=False)
        self._last: dict[int, Mapping[str, Any]] = {}

    def close(self) -> None:
        """Close the bar."""
        self._bar.close()

    def say(self, text: str) -> None:
        """Show a line above the bar."""
        tqdm.write(f"{self._title}: {text}", file=sys.stderr)
        sys.stderr.flush()

    def start(self, tasks: list[Task], finished: int) -> None:
        """Count to the rounds of further runs.

        Args:
            tasks: The runs.
            finished: The number of runs that were finished before.
        """
        self.runs += len(tasks) + finished
        self.finished_runs += finished
        if not self._bar.total:
            self._bar.reset()  # The time begins now.
        self._bar.total = (self._bar.total or 0) + sum(_rounds(task) for task in tasks)
        self._count()

    def round(self, task: Task, record: Mapping[str, Any]) -> None:
        """Show a round that a run has done.

        Args:
            task: The run.
            record: The record of the round, or what is shown of it.
        """
        last = self._last.get(id(task), {"round": 0})
        # A resumed run does not begin with round 1.
        self._bar.update(record["round"] - last["round"])
        known = {} if record["evaluated"] else last
        self._last[id(task)] = {**record, **known, "round": record["round"]}
        self._bar.set_postfix_str(task.title, refresh=False)
        if self._in_log and record["evaluated"]:
            self.say(f"{task.title}: round {record['round']}/{_rounds(task)} {_scores(record)}")

    def finish(self, task: Task, failure: str | None) -> None:
        """Show a run that is over, with the accuracy of its last round or its failure.

        Args:
            task: The run.
            failure: The sentence of its failure, if it failed.
        """
        self.finished_runs += 1
        last = self._last.pop(id(task), {"round": 0})
        # Rounds that a failed run lacks, and those of a stored run, keep nobody waiting.
        self._bar.update(_rounds(task) - last["round"])
        self._count()
        outcome = failure or _scores(last) or "stored before"
        rest = (self._bar.total or 0) - self._bar.n
        if rest and self._bar.n:  # If it takes as long as what was done. TQDM_DISABLE stops counts.
            seconds = self._bar.format_dict["elapsed"] * rest / self._bar.n
            outcome += f", about {tqdm.format_interval(seconds)} left"
        self.say(f"[{self.finished_runs}/{self.runs}] {task.title}: {outcome}")

    def _count(self) -> None:
        counted = f"{self._title} [{self.finished_runs}/{self.runs}]"
        self._bar.set_description(counted, refresh=False)


def _rounds(task: Task) -> int:
    return int(task.run.federation.rounds)


def _scores(record: Mapping[str, Any]) -> str:
    return " ".join(
        f"{name}={record[column]:.3f}" for name, column in SHOWN if record.get(column) is not None
    )
