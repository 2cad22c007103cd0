"""Hyper-parameter search: equally many trials of every method, by validation accuracy.

Trials are runs on seeds that the grid does not use. The outcome is a file; choosing what stands in
the config is a person's act.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsdg import files
from fedsdg.experiment.backbones.made import require_made, take_recorded
from fedsdg.experiment.config import Config
from fedsdg.experiment.machine.devices import devices_of
from fedsdg.experiment.machine.interruption import Stopped, stopped_by_signals
from fedsdg.experiment.machine.processes import Failed, Workers, surroundings
from fedsdg.experiment.machine.progress import TimeLeft
from fedsdg.experiment.search.found import (
    backbone_recipe,
    found_entries,
    found_of,
    known_outcomes,
    read_found,
    summary_lines,
    tuned_file,
    tuned_values,
)
from fedsdg.experiment.search.scores import Outcome, score
from fedsdg.experiment.search.trials import TrialRun, resolved, trial_runs, trials_of
from fedsdg.experiment.search.two_stage import TwoStageSearch
from fedsdg.experiment.search_space import TWO_STAGE
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
    the file held before, of runs that this call does not come to, stay. In two stages they count
    as done; values of finished rows go to ``tuned_file(output)``; in one stage too, where the
    config names a file of tuned values.

    Raises ``ValueError`` where there is nothing to search, no validation data, a backbone of
    another recipe, or fewer devices than jobs; ``FileNotFoundError`` where there is no backbone,
    nor one of its recipe in the record;
    and ``Stopped`` at SIGINT and SIGTERM.
    """
    begun = time.monotonic()
    config = resolved(config)
    labels = list(dict.fromkeys(trial.method.label for trial in trials_of(config)))
    for label in only:
        if label not in labels:
            raise ValueError(f"--only {label!r}: no method of the search{hint(label, labels)}")
    if config.search.trials == TWO_STAGE:
        plan = _in_two_stages(config, store, backbone, output, only)
    else:
        plan = _at_once(config, store, backbone, output, only)
    expected = plan.left()
    if backbone and expected:
        recipe = config.backbones[config.backbone]
        if not backbone.is_file():
            take_recorded(config.backbone, recipe, backbone)
        require_made(config.backbone, recipe, backbone)
    deadline = None if minutes is None else begun + 60 * minutes

    def in_time(runs: Iterable[TrialRun]) -> Iterator[TrialRun]:
        for run in runs:
            if deadline is not None and time.monotonic() >= deadline:
                return
            yield run

    device = config.training.device
    jobs = max(1, min(jobs or len(devices_of(device)) or os.cpu_count() or 1, expected))
    environment = surroundings(
        device, config.training.threads, jobs, bool(devices_of(device, jobs))
    )
    done, killed = 0, 0
    try:
        with (
            stopped_by_signals() as check,
            Workers(jobs, environment) as workers,
            _Progress(expected) as progress,
        ):
            for batch in plan.batches:
                for run, outcome in workers.map(score, in_time(batch)):
                    if isinstance(outcome, Failed):
                        if outcome.kind != "killed":
                            raise ValueError(f"{run.title}: {outcome}")
                        # Not the method's fault: the trial stays open.
                        killed += 1
                        progress.say(f"{run.title}: {outcome}")
                        continue
                    plan.keep(run, outcome)
                    # Only now, for a signal may come at any moment.
                    done += 1
                    progress.finished(run.title, outcome)
                    check()
                progress.expect(done + plan.left())
    except Stopped as stop:
        kept = f"what they reached is in {output}, and " if done else ""
        raise Stopped(
            stop.args[0],
            f"stopped: {done} of {done + plan.left()} runs of the search are finished, {kept}the "
            "rounds that others had done are saved; the same command goes on from there",
        ) from None
    if left := plan.left():
        why = f", {killed} of them because their process was ended" if killed else ""
        print(
            f"search: {left} of {done + left} runs are left{why}; give the same command to go on",
            file=sys.stderr,
        )
    return plan.write()


@dataclass(frozen=True)
class _Plan:
    """What a search does, and how it keeps what comes of it.

    ``batches``: runs, which may depend on the outcomes of those before; ``keep``: take an outcome
    and write the file; ``left``: how many runs are still to be done; ``write``: write and return
    what is known.
    """

    batches: Iterable[Sequence[TrialRun]]
    keep: Callable[[TrialRun, Outcome], object]
    left: Callable[[], int]
    write: Callable[[], dict[str, Any]]


def _at_once(
    config: Config,
    store: Path,
    backbone: Path | None,
    output: Path,
    only: Sequence[str],
) -> _Plan:
    """All trials of all methods, which are known beforehand."""
    planned = list(trial_runs(config, trials_of(config), store, backbone))
    wanted = {run.key for run in planned}
    earlier = known_outcomes(read_found(output)) if output.is_file() else {}
    outcomes = {key: one for key, one in earlier.items() if key in wanted}
    # Where the config names a file of tuned values, the outcomes in the file count as done.
    taken = set(outcomes) if config.tuned else set()
    todo = [
        run
        for run in planned
        if run.key not in taken and (not only or run.trial.method.label in only)
    ]
    done = set()

    def write() -> dict[str, Any]:
        found = found_of(config, planned, outcomes)
        files.write_json(output, found)
        if config.tuned:
            begun = {run.trial.method.label for run in planned if run.key not in outcomes}
            whole = {k: v for k, v in found["methods"].items() if k not in begun}
            values = tuned_values({**found, "methods": whole})
            files.write_bytes(tuned_file(output), values.encode())
        return found

    def keep(run: TrialRun, outcome: Outcome) -> None:
        outcomes[run.key] = outcome
        write()
        done.add(run.key)

    return _Plan([todo], keep, lambda: len(todo) - len(done), write)


def _in_two_stages(
    config: Config,
    store: Path,
    backbone: Path | None,
    output: Path,
    only: Sequence[str],
) -> _Plan:
    """Row by row, without the runs whose outcomes the file holds."""
    found = read_found(output) if output.is_file() else {}
    earlier = found if found and _goes_on(found, output, config) else {"methods": {}}
    rows = TwoStageSearch(config, store, backbone, dict(known_outcomes(earlier)))
    for label, now in rows.found()["methods"].items():
        before = earlier["methods"].get(label)
        if before is not None and before["best"] and not now["best"]:
            same = before["space"] == now["space"]
            changed = "seeds, cells or settings" if same else "space"
            _say(f"{label}: its {changed} changed, so what was found of it no longer counts")

    def write() -> dict[str, Any]:
        found = rows.found()
        files.write_json(output, found)
        text = tuned_values(found).encode()
        place = tuned_file(output)
        if not place.is_file() or place.read_bytes() != text:
            files.write_bytes(place, text)
        return found

    def keep(run: TrialRun, outcome: Outcome) -> None:
        rows.keep(run, outcome)
        write()

    return _Plan(rows.batches(only), keep, lambda: rows.left(only), write)


def _goes_on(found: Mapping[str, Any], file: Path, config: Config) -> bool:
    """Whether trials of a file count: in two stages, from a backbone of the same recipe."""
    if found.get("trials") != TWO_STAGE:
        _say(f"{file} is of a search in one stage; its trials are not used")
        return False
    if found["backbone"] != backbone_recipe(config):
        _say(f"{file} is of trials from a backbone of another recipe; they are not used")
        return False
    return True


def _say(text: str) -> None:
    print(f"search: {text}", file=sys.stderr)


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

    def expect(self, runs: int) -> None:
        """Count to so many runs from now on."""
        self._runs = self._bar.total = runs

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
