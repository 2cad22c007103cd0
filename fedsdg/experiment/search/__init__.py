"""Hyper-parameter search: equally many trials of every method, by validation accuracy.

Trials are runs on seeds that the grid does not use. The outcome is a file; choosing what stands in
the config is a person's act.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedsdg import files
from fedsdg.experiment.backbones.made import require_made
from fedsdg.experiment.config import Config
from fedsdg.experiment.grid.environment import surroundings
from fedsdg.experiment.machine.devices import devices_of
from fedsdg.experiment.machine.interruption import Stopped, stopped_by_signals
from fedsdg.experiment.machine.processes import Failed, Workers
from fedsdg.experiment.machine.progress import TimeLeft
from fedsdg.experiment.search.found import (
    found_entries,
    found_of,
    known_outcomes,
    read_found,
    summary_lines,
)
from fedsdg.experiment.search.scores import Outcome, score
from fedsdg.experiment.search.trials import TrialRun, trial_runs, trials_of
from fedsdg.files import hint

__all__ = ["found_entries", "read_found", "search", "summary_lines"]


def search(
    config: Config,
    store: Path,
    backbone: Path | None,
    output: Path,
    *,
    jobs: int | None = None,
    only: Sequence[str] = (),
    minutes: float | None = None,
) -> dict[str, Any]:
    """Run the trials, ``jobs`` at a time, and write what was found.

    Default of ``jobs``: one for each device that ``FEDSDG_DEVICES`` names, else for each processor.

    ``only`` are labels of methods, and ``minutes`` after which no run is started; the file then
    holds what is known, and the same call goes on: finished runs lie in the store. Outcomes that
    the file held before, of runs that this call does not come to, stay.

    Raises ``ValueError`` where there is nothing to search, no validation data, a backbone of
    another recipe, or fewer devices than jobs; ``FileNotFoundError`` where there is no backbone;
    and ``Stopped`` at SIGINT and SIGTERM.
    """
    begun = time.monotonic()
    if backbone:
        require_made(config.backbone, config.backbones[config.backbone], backbone)
    tried = trials_of(config)
    labels = list(dict.fromkeys(trial.method.label for trial in tried))
    for label in only:
        if label not in labels:
            raise ValueError(f"--only {label!r}: no method of the search{hint(label, labels)}")
    planned = list(trial_runs(config, tried, store, backbone))
    outcomes = known_outcomes(output, planned)
    todo = [run for run in planned if not only or run.trial.method.label in only]
    deadline = None if minutes is None else begun + 60 * minutes

    def in_time() -> Iterator[TrialRun]:
        for run in todo:
            if deadline is not None and time.monotonic() >= deadline:
                return
            yield run

    device = config.training.device
    jobs = min(jobs or len(devices_of(device)) or os.cpu_count() or 1, len(todo))
    environment = surroundings(config, jobs, bool(devices_of(device, jobs)))
    done, killed = 0, 0
    found = found_of(config, planned, outcomes)
    try:
        with (
            stopped_by_signals() as check,
            Workers(jobs, environment) as workers,
            _Progress(len(todo)) as progress,
        ):
            for run, outcome in workers.map(score, in_time()):
                if isinstance(outcome, Failed):
                    if outcome.kind != "killed":
                        raise ValueError(f"{run.title}: {outcome}")
                    # Not the method's fault: the trial stays open.
                    killed += 1
                    progress.say(f"{run.title}: {outcome}")
                    continue
                outcomes[run.key] = outcome
                found = found_of(config, planned, outcomes)
                files.write_json(output, found)
                # Only now, for a signal may come at any moment.
                done += 1
                progress.finished(run.title, outcome)
                check()
    except Stopped as stop:
        kept = f"what they reached is in {output}, and " if done else ""
        raise Stopped(
            stop.args[0],
            f"stopped: {done} of {len(todo)} runs of the search are finished, {kept}the rounds "
            "that others had done are saved; the same command goes on from there",
        ) from None
    if left := len(todo) - done:
        why = f", {killed} of them because their process was ended" if killed else ""
        print(
            f"search: {left} of {len(todo)} runs are left{why}; give the same command to go on",
            file=sys.stderr,
        )
    files.write_json(output, found)
    return found


class _Progress:
    """A bar over all runs on a terminal, else a plain line for each."""

    def __init__(self, runs: int) -> None:
        from tqdm import tqdm

        self._runs, self._done, self._left = runs, 0, TimeLeft()
        self._bar = tqdm(total=runs, desc="search", unit="run", disable=not sys.stderr.isatty())

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def say(self, text: str) -> None:
        self._bar.write(f"search: {text}", file=sys.stderr)
        sys.stderr.flush()

    def finished(self, title: str, outcome: Outcome) -> None:
        self._done += 1
        self._bar.update(1)
        if self._bar.disable or outcome["error"]:
            reached = outcome["error"] or f"{outcome['score']:.4f}"
            left = self._left(self._done, self._runs) if self._bar.disable else ""
            self.say(f"[{self._done}/{self._runs}] {title}: {reached}{left}")
