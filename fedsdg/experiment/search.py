"""Hyper-parameter search: the same number of trials for every row, by validation accuracy.

Trials are ordinary runs on seeds that the grid does not use, at half of the rounds. The best three
of a row run again at full length on the other seeds of the search, and the best of these is the
winner. Finished runs are stored, so the same command goes on where it was; adding a row, trials or
seeds runs what is new and nothing else.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedsdg import files
from fedsdg.experiment.config import Config
from fedsdg.errors import hint
from fedsdg.experiment.configured import axes_of, trial_tasks, with_bounds
from fedsdg.experiment.grid import prepare, run_all, stopped_with_a_sentence
from fedsdg.experiment.points import points
from fedsdg.experiment.progress import Progress
from fedsdg.experiment.store import RESULT, store_failure, stored_failure, stored_run
from fedsdg.experiment.trials import Row, Trial
from fedsdg.experiment.workers import Failed, environments

TRIALS = 24
"""Points that are tried of every row, unless the config names another number."""
SHARE = 0.5
"""Share of the rounds that a trial runs."""
FINALISTS = 3
OWN_FAULTS = ("FloatingPointError: ", "ValueError: ")
"""How the sentence of a failure begins that the values of a trial are to blame for."""
CRITERION = (
    "validation accuracy of clients' own models, mean over clients, over the evaluations of the "
    "last quarter of the rounds, and over data sets, settings and seeds; a run that failed counts 0"
)


def search(
    config: Config,
    output: Path,
    *,
    jobs: int = 1,
    only: Sequence[str] = (),
    minutes: float | None = None,
) -> dict[str, Any]:
    """Run the trials that are not stored, and write what was found.

    Two files are written: `output`, with all trials, and beside it the values of the winners, as
    `tuned` of a config reads them.

    Args:
        config: The config, with a section `search`.
        output: A path that ends in `.json`.
        jobs: The number of runs side by side.
        only: Labels of the rows for which runs are started; none: all. Stored runs of the others
            count as well.
        minutes: No run is started after this time.

    Returns:
        What the file holds.

    Raises:
        ValueError: There is nothing to search, or a client has no validation samples.
        GridError: The backbone, a data set or a partition cannot be had.
        Stopped: A signal ended it; what was done is stored.
    """
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    config = with_bounds(config)
    first, *others = config.search.seeds
    rows = _rows(config, first)
    for label in only:
        if label not in (labels := [row.label for row in rows]):
            raise ValueError(f"--only {label!r}: no row of the search{hint(label, labels)}")
    with Progress("search") as progress, stopped_with_a_sentence(progress):
        trials = [(row.label, trial) for row in rows for trial in row.trials]
        left = _score(config, trials, only, jobs, progress, deadline)
        for row in rows:
            row.finalists = _finalists(config, row, others)
        finals = [(row.label, trial) for row in rows for trial in row.finalists if others]
        left += _score(config, finals, only, jobs, progress, deadline)
    if left:
        print(f"search: {left} runs are left; give the same command to go on", file=sys.stderr)
    found = {
        "experiment": config.experiment,
        "criterion": CRITERION,
        "seeds": list(config.search.seeds),
        "share_of_rounds": SHARE,
        "methods": {row.label: row.facts() for row in rows},
    }
    files.write_json(output, found)
    files.write_bytes(output.with_suffix(".tuned.yaml"), tuned_values(found).encode())
    return found


def _rows(config: Config, seed: int) -> list[Row]:
    """Return the rows of the config that have a space, with their trials."""
    given = config.search.trials
    count = TRIALS if isinstance(given, str) else given
    rows = []
    for entry in config.methods:
        space = axes_of(config, entry.label)
        if space:
            row = Row(entry.label, space, [])
            for number, values in enumerate(points(space, count)):
                tasks = trial_tasks(config, entry.label, values, seed, share=SHARE)
                row.trials.append(Trial(number, values, tasks))
            rows.append(row)
    if not rows:
        raise ValueError(
            "the config has nothing to search; say under search.space which values of which "
            "methods to try"
        )
    return rows


def _finalists(config: Config, row: Row, seeds: Sequence[int]) -> list[Trial]:
    """Return the best trials of a row as they run again; with one seed, the best as it is."""
    best = row.ranked()[: FINALISTS if seeds else 1]
    if not seeds:
        return best
    finalists = []
    for trial in best:
        tasks = [
            task
            for seed in seeds
            for task in trial_tasks(config, row.label, trial.parameters, seed, share=1.0)
        ]
        finalists.append(Trial(trial.number, trial.parameters, tasks))
    return finalists


def _score(
    config: Config,
    trials: Sequence[tuple[str, Trial]],
    only: Sequence[str],
    jobs: int,
    progress: Progress,
    deadline: float | None,
) -> int:
    """Fill in the scores of trials, and return how many runs are left.

    The first trial of every row comes first, then the second: a search that is cut short has tried
    all rows equally often.
    """
    in_order = sorted(trials, key=lambda labelled: labelled[1].number)
    runs = [(label, trial, task) for label, trial in in_order for task in trial.tasks]
    if not runs:
        return 0
    tasks = [task for _, _, task in runs]
    places = environments(config.training.device, config.training.threads, jobs)
    keys = prepare(config, tasks, places, progress)
    stored = {key for key in keys if stored_run(key) is not None}
    failures = {key: stored_failure(key) for key in keys if key not in stored}
    errors = {key: sentence for key, sentence in failures.items() if sentence is not None}
    chosen = {
        key: task
        for key, (label, _, task) in zip(keys, runs, strict=True)
        if key not in stored and key not in errors and (not only or label in only)
    }
    key_of = {id(task): key for key, task in chosen.items()}
    progress.start(list(chosen.values()), len(stored) + len(errors))
    with run_all(list(chosen.values()), places, progress, deadline) as outcomes:
        for task, outcome in outcomes:
            key = key_of[id(task)]
            progress.finish(task, outcome.message if isinstance(outcome, Failed) else outcome)
            if outcome is None:
                stored.add(key)
            elif isinstance(outcome, str) and outcome.startswith(OWN_FAULTS):
                store_failure(key, outcome)
                errors[key] = outcome
            # Otherwise the machine is to blame, and the trial stays open.
    for key, (_, trial, _) in zip(keys, runs, strict=True):
        if key in errors:
            trial.scores.append(0.0)
            trial.errors.append(errors[key])
        elif key in stored:
            trial.scores.append(_validation_accuracy(key))
    return sum(key not in errors and key not in stored for key in chosen)


def _validation_accuracy(key: str) -> float:
    """Return the score of a stored run."""
    folder = stored_run(key)
    assert folder is not None
    accuracy = files.read_json(folder / RESULT)["quarter"]["val_accuracy"]
    if accuracy is None:
        raise ValueError(
            "a run has no validation accuracy, by which the search chooses; give clients more "
            "samples with partition.min_samples"
        )
    return float(accuracy)


def summary_lines(found: Mapping[str, Any]) -> list[str]:
    """Return a line for each row: the winner, its score, and parameters at an edge."""
    lines = []
    for label, row in found["methods"].items():
        counted = f"{len(row['expected_best'])} of {row['planned']} trials"
        if row["failed"]:
            counted += f", {row['failed']} failed"
        best = row["best"]
        if best is None:
            lines.append(f"{label}: the search is not complete ({counted})")
            continue
        values = ", ".join(f"{name} = {value}" for name, value in best["parameters"].items())
        line = f"{label}: {values} with {100 * best['score']:.1f} % ({counted})"
        for name, side in row["edges"].items():
            line += f"; {name} lies at the {side} edge of its range: widen it"
        lines.append(line)
    return lines


def tuned_values(found: Mapping[str, Any]) -> str:
    """Return the winners as `tuned: FILE` of a config reads them: label → values, in YAML."""
    lines = [
        f"# Found by `fedsdg search` for {found['experiment']}; the config names this file as",
        "# `tuned`, and its values are laid over the entries of `methods`.",
    ]
    for label, row in found["methods"].items():
        if row["best"] is not None:
            values = {label: row["best"]["parameters"]}
            text = yaml.safe_dump(values, default_flow_style=None, sort_keys=False, width=1000)
            lines.append(text.rstrip())
    return "\n".join(lines) + "\n"
