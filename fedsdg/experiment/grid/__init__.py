"""A whole grid without Snakemake: the same files in the same places, byte for byte.

For machines that have PyTorch and little else, and may be taken away at any moment: runs are done
seed by seed, so that the first seed of every method is complete before the second begins; what is
finished is never done again; and what was not run stands in the tables as such.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsdg import files
from fedsdg.experiment.backbones.made import is_made, take_recorded
from fedsdg.experiment.config import Config
from fedsdg.experiment.grid.loaded import loaded_material
from fedsdg.experiment.grid.outcomes import GridError, needed
from fedsdg.experiment.grid.pages import require_pages, write_pages
from fedsdg.experiment.grid.partitions import division_of, kept_or_made, make_partitions
from fedsdg.experiment.grid.runs import (
    Run,
    backbone_file,
    grid_runs,
    is_finished,
)
from fedsdg.experiment.machine.devices import devices_of
from fedsdg.experiment.machine.interruption import Stopped, stopped_by_signals
from fedsdg.experiment.machine.processes import Failed, Note, Workers, surroundings
from fedsdg.experiment.machine.progress import GridProgress

__all__ = ["GridError", "backbone_file", "division_of", "kept_or_made", "run_grid"]


def run_grid(
    config: Config,
    store: Path,
    *,
    jobs: int = 1,
    only: Sequence[str] = (),
    minutes: float | None = None,
    runs_only: bool = False,
) -> list[str]:
    """Do what is not done yet, and write summary, tables and figures of what there is.

    ``jobs`` runs side by side; no run is started after ``minutes``. ``runs_only``: stop before the
    summary; the dearest runs are done first, so that no process waits for the last of them, and
    finished runs are repeated on standard output.
    Returns the failed runs, one line each; none where ``runs_only``, for the summary tells them.
    Raises ``GridError`` when the backbone, a data set or a partition cannot be had, ``ValueError``
    for a table or figure that there is not, and ``Stopped`` at SIGINT and SIGTERM, when what was
    done is saved.
    """
    begun = time.monotonic()
    if not runs_only:
        require_pages(config)
    runs = grid_runs(config, store, only)
    device, threads = config.training.device, config.training.threads
    apart = bool(devices_of(device, jobs))
    rounds = config.federation.rounds
    with GridProgress(config.experiment, rounds, repeated=runs_only) as progress:
        try:
            with stopped_by_signals() as check:
                backbone = _make_backbone(config, store, progress)
                with Workers(jobs, surroundings(device, threads, jobs, apart)) as workers:
                    made = make_partitions(config, runs, workers, progress)
                    left = [
                        run
                        for run in runs
                        if not is_finished(run, made[run.partition], backbone, progress.say)
                    ]
                    if runs_only:
                        left.sort(key=lambda run: run.config.method != "fine-tune")
                    progress.start(len(runs), len(runs) - len(left))
                    deadline = None if minutes is None else begun + 60 * minutes
                    _train(left, workers, progress, deadline, check)
                    return [] if runs_only else write_pages(config, workers, progress)
        except Stopped as stop:
            raise Stopped(stop.args[0], progress.stopped) from None


def _make_backbone(config: Config, store: Path, progress: GridProgress) -> str | None:
    """The backbone's hash, None where there is none."""
    file = backbone_file(config)
    if file is None:
        return None
    options = config.backbones[config.backbone]
    light = options.get("source", "pretrain") == "pretrain"  # To look at others takes PyTorch.
    if light and (is_made(options, file) or take_recorded(config.backbone, options, file)):
        return str(files.read_json(file.with_suffix(".json"))["sha256"])
    keeping = {
        "checkpoints": store.parent / "checkpoints",
        "checkpoint_seconds": config.checkpoint_seconds,
    }
    with Workers(1, surroundings("cpu", options.get("threads", 1), 1, False)) as workers:
        for _, outcome in workers.map(_backbone, [(options, file, keeping)]):
            made = needed(outcome, f"backbone {config.backbone}")
    progress.say(f"backbone {config.backbone}: {made[:8]}")
    return str(made)


def _backbone(task: tuple[Mapping[str, Any], Path, Mapping[str, Any]], note: Note) -> str:
    from fedsdg.experiment.backbones import pretraining

    options, file, keeping = task
    if not is_made(options, file):
        pretraining.pretrain(options, file, **keeping)
    return str(files.read_json(file.with_suffix(".json"))["sha256"])


def _train(
    runs: Sequence[Run],
    workers: Workers,
    progress: GridProgress,
    deadline: float | None,
    check: Callable[[], None],
) -> None:
    def in_time() -> Iterator[Run]:
        for run in runs:
            if deadline is not None and time.monotonic() >= deadline:
                return
            yield run

    def noted(run: Run, record: Any) -> None:
        progress.round(run.title, record)
        check()

    done = 0
    for run, outcome in workers.map(_execute, in_time(), noted):
        if isinstance(outcome, Failed):
            if outcome.kind != "killed":
                raise GridError(f"{run.title}: {outcome}")
            from fedsdg.experiment.runs import record_failure

            error = RuntimeError(outcome.message)
            outcome = record_failure(run.config, error, run.folder, run.identity)
        done += 1
        progress.finished(run.title, outcome)
        check()
    progress.stop()
    if done < len(runs):
        progress.say(f"time is up: {len(runs) - done} of the runs are left; call again to go on")


def _execute(run: Run, note: Note) -> str | None:
    """None, or the sentence of the run's failure, which is recorded."""
    from fedsdg.data.partition_files import read_partition
    from fedsdg.experiment.runs import execute

    def progress(round_: int, record: Mapping[str, Any]) -> None:
        shown = ("evaluated", "train_loss", "personal_accuracy", "global_accuracy")
        note({"round": round_, **{key: record.get(key) for key in shown}})

    return execute(
        run.config,
        loaded_material(run.source, run.backbone, run.config.training.device),
        read_partition(run.partition),
        run.folder,
        store=run.store,
        identity=run.identity,
        progress=progress,
        checkpoint_seconds=run.checkpoint_seconds,
    )
