"""Hyper-parameter search: the same number of trials for every row, by validation accuracy.

Trials are ordinary runs on seeds that the grid does not use, at half of the rounds. The best three
of a row run again at full length on the other seeds of the search, and the best of these is the
winner. Finished runs are stored, and the file of the search says how they ended, so the same
command goes on where it was, on another machine if the file is there; adding a row, trials or seeds
runs what is new and nothing else.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedsdg import files
from fedsdg.config.config import Config
from fedsdg.config.search import Axis, Interval
from fedsdg.data.partition import TRAIN
from fedsdg.data.partition_files import read_partition
from fedsdg.errors import require_one_of
from fedsdg.experiment.grid import Runner, runner
from fedsdg.experiment.points import bounded, edge, expected_best, points
from fedsdg.experiment.runs import RESULTS, Task, task_of
from fedsdg.experiment.store import stored_run
from fedsdg.files.yaml_text import yaml_bytes
from fedsdg.parts import plain

SHARE = 0.5
"""Share of the rounds that a trial runs."""
FINALISTS = 3
OWN_FAULTS = ("FloatingPointError: ", "ValueError: ")
"""How the sentence of a failure begins that the values of a trial are to blame for."""
TUNED = """# Found by `fedsdg search` for {experiment}; the config names this file as
# `tuned`, and its values are laid over the entries of `methods`.
"""
CRITERION = (
    "validation accuracy of clients' own models, mean over clients, over the evaluations of the "
    "last quarter of the rounds, and over data sets, settings and seeds; a run that failed counts 0"
)

Outcome = float | str | None
"""Of a run: its validation accuracy, the sentence of its failure, or None if it is not done."""


@dataclass
class Trial:
    """A point of a row's space, and how its runs ended."""

    label: str
    "of the row"
    number: int
    parameters: dict[str, Any]
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    "of its runs, by their addresses"

    @property
    def score(self) -> float | None:
        """The mean over its runs, failed ones as 0; None until all are done."""
        outcomes = self.outcomes.values()
        if not outcomes or None in outcomes:
            return None
        scores = [outcome for outcome in outcomes if isinstance(outcome, float)]
        return round(sum(scores) / len(outcomes), 6)

    def facts(self) -> dict[str, Any]:
        """Return what the file of the search says of it."""
        return {
            "number": self.number,
            "parameters": plain(self.parameters),
            "score": self.score,
            "runs": {key: one for key, one in self.outcomes.items() if one is not None},
        }


@dataclass
class Row:
    """A method that is searched: its trials, and the best of them at full length."""

    space: Mapping[str, Axis]
    trials: list[Trial]
    finalists: list[Trial] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """Return what the file of the search says of it."""
        # A score of 0 is none: every run failed.
        best = next((trial for trial in _best_first(self.finalists) if trial.score), None)
        values = best.parameters if best else {}
        sides = {name: edge(self.space[name], value) for name, value in values.items()}
        scores = [trial.score for trial in self.trials if trial.score is not None]
        return {
            "space": {
                name: plain(axis) if isinstance(axis, tuple) else vars(axis)
                for name, axis in self.space.items()
            },
            "planned": len(self.trials),
            "failed": sum(
                any(isinstance(one, str) for one in t.outcomes.values()) for t in self.trials
            ),
            "best": best and {"trial": best.number, **best.facts()},
            "edges": {name: side for name, side in sides.items() if side},
            "expected_best": [round(score, 6) for score in expected_best(scores)],
            "trials": [trial.facts() for trial in self.trials],
            "finalists": [trial.facts() for trial in self.finalists],
        }


def search(
    config: Config,
    output: Path,
    results: Path = RESULTS,
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
        output: A path that ends in `.json`. The runs that a file there names are not repeated.
        results: The folder of backbones and partitions.
        jobs: The number of runs side by side.
        only: Labels of the rows for which runs are started; none: all. Stored runs of the others
            count as well.
        minutes: No run is started after this time.

    Returns:
        What the file holds.

    Raises:
        ValueError: There is nothing to search, or the backbone, a data set or a partition cannot
            be had.
        Stopped: A signal ended it; what was done is stored.
    """
    labels = [entry.label for entry in config.methods if entry.label in config.space]
    if not labels:
        raise ValueError(
            "the config has nothing to search; say under search.space which values of which "
            "methods to try"
        )
    for label in only:
        require_one_of(labels, label, "--only: the search has no row")
    first, *others = config.search.seeds
    known = _known(output)
    with runner(config, "search", results, jobs, minutes) as runs:
        rows = {label: _row(runs, label, first) for label in labels}
        try:
            trials = [trial for row in rows.values() for trial in row.trials]
            _run(runs, trials, [first], SHARE, only or labels, known)
            for row in rows.values():
                row.finalists = _best_first(row.trials)[: FINALISTS if others else 1]
                if others:
                    row.finalists = [replace(one, outcomes={}) for one in row.finalists]
            finalists = [trial for row in rows.values() for trial in row.finalists]
            _run(runs, finalists, others, 1.0, only or labels, known)
        except KeyboardInterrupt:  # Runs that failed stand in the file alone.
            _write(config, output, rows)
            raise
    return _write(config, output, rows)


def _write(config: Config, output: Path, rows: Mapping[str, Row]) -> dict[str, Any]:
    """Write both files, and return what the first one holds."""
    facts = {label: row.facts() for label, row in rows.items()}
    found = {
        "experiment": config.experiment,
        "criterion": CRITERION,
        "seeds": list(config.search.seeds),
        "share_of_rounds": SHARE,
        "methods": facts,
    }
    files.write_json(output, found)
    # A row that is not finished stands there without values, so that it is none of the unsearched.
    values = {label: row["best"] and row["best"]["parameters"] for label, row in facts.items()}
    head = TUNED.format(experiment=config.experiment).encode()
    layout = {"default_flow_style": None, "sort_keys": False, "width": 1000}
    files.write_bytes(output.with_suffix(".tuned.yaml"), head + yaml_bytes(values, **layout))
    return found


def _row(runs: Runner, label: str, seed: int) -> Row:
    """Return a row before its trials, with `bound` as a number."""
    space = runs.config.space[label]
    axis = space.get("eta_m")
    if isinstance(axis, Interval) and axis.low is None:
        tasks = _tasks(runs, Trial(label, 0, {}), [seed], 1.0)
        runs.keys(tasks)  # It makes their partitions.
        cells = {}
        for task in tasks:
            drawn = read_partition(task.partition)
            sizes = drawn.counts(drawn.split, 3)[:, TRAIN]
            cells[f"{task.run.dataset}, {task.run.setting}"] = (task.run, sizes)
        space = {**space, "eta_m": bounded(axis, cells)}
    numbered = enumerate(points(space, runs.config.search.trials))
    return Row(space, [Trial(label, *one) for one in numbered])


def _run(
    runs: Runner,
    trials: Iterable[Trial],
    seeds: Sequence[int],
    share: float,
    only: Sequence[str],
    known: dict[str, Outcome],
) -> None:
    """Do the runs of trials that are not done, and tell the trials how all of them ended.

    The first trial of every row comes first, then the second: a search that is cut short has tried
    all rows equally often.
    """
    in_turn = sorted(trials, key=lambda trial: trial.number)
    pairs = [(trial, task) for trial in in_turn for task in _tasks(runs, trial, seeds, share)]
    keys = runs.keys([task for _, task in pairs])
    # Trials at the same point have the same runs.
    wanted = {
        key: task for key, (trial, task) in zip(keys, pairs, strict=True) if trial.label in only
    }
    left = {key: task for key, task in wanted.items() if _outcome(key, known) is None}
    key_of = {id(task): key for key, task in left.items()}
    runs.progress.start([*left.values()], len(wanted) - len(left))
    try:
        for task, failure in runs.run([*left.values()]):
            # Otherwise the machine is to blame, and the trial stays open.
            if failure is not None and failure.startswith(OWN_FAULTS):
                known[key_of[id(task)]] = failure
    finally:
        for key, (trial, _) in zip(keys, pairs, strict=True):
            trial.outcomes[key] = _outcome(key, known)


def _tasks(runs: Runner, trial: Trial, seeds: Sequence[int], share: float) -> list[Task]:
    """Return the runs of a trial: its values in every cell that the search counts.

    They are evaluated on validation samples alone, in the last quarter of their rounds, which is
    what is scored. `share` is that of the rounds of the config.
    """
    config = runs.config
    entry = config.method(trial.label).with_values(trial.parameters)
    chosen = config.search.skews or config.settings
    for name in chosen:
        known = [*config.settings, *config.skews]
        require_one_of(known, name, "names no skew of the experiment:", "search.skews")
    settings = [one for one in config.settings if {one, one.partition("@")[0]} & {*chosen}]
    tasks = []
    for seed, dataset, setting in itertools.product(seeds, config.sources, settings):
        run = config.run(dataset, setting, entry, seed)
        rounds = max(1, round(share * run.federation.rounds))
        federation = run.federation.replaced(
            rounds=rounds,
            evaluate_at=None,
            evaluate_from=3 * rounds // 4 + 1,
            evaluate="validation",
        )
        task = task_of(config, run.replaced(federation=federation), runs.results)
        tasks.append(replace(task, folder=None))
    return tasks


def _known(output: Path) -> dict[str, Outcome]:
    """Return how the runs of an earlier search ended, by their addresses."""
    rows = read_search(output)["methods"].values() if output.is_file() else ()
    trials = [trial for row in rows for trial in (*row["trials"], *row["finalists"])]
    # Files of version 0.2 do not say it.
    return {key: one for trial in trials for key, one in trial.get("runs", {}).items()}


def _outcome(key: str, known: Mapping[str, Outcome]) -> Outcome:
    """Return what the store says of a run, else what is known of it."""
    folder = stored_run(key)
    if folder is None:
        return known.get(key)
    # A trial is evaluated in the last quarter of its rounds alone.
    column = pq.read_table(folder / "rounds.parquet", columns=["val_accuracy"])[0]
    return float(pc.mean(column).as_py())


def _best_first(trials: Sequence[Trial]) -> list[Trial]:
    """Return trials whose points differ, of equal scores the first; none until all are done."""
    if any(trial.score is None for trial in trials):
        return []
    distinct: list[Trial] = []
    for trial in sorted(trials, key=lambda trial: (-(trial.score or 0.0), trial.number)):
        if all(trial.parameters != other.parameters for other in distinct):
            distinct.append(trial)
    return distinct


def read_search(output: Path) -> dict[str, Any]:
    """Return what a search wrote.

    Args:
        output: Its file.

    Raises:
        ValueError: It is another file.
    """
    found: dict[str, Any] = files.read_json(output)
    try:
        summary_lines(found)
        trials = [trial for row in found["methods"].values() for trial in row["trials"]]
        sound = all(isinstance(trial, dict) for trial in trials)
    except (TypeError, LookupError, AttributeError):
        sound = False
    if not sound:
        raise ValueError(f"{output} is not the file of a search; name another --output")
    return found


def summary_lines(found: Mapping[str, Any]) -> list[str]:
    """Return a line for each row: the winner, its score, and parameters at an edge."""
    lines = []
    for label, row in found["methods"].items():
        counted = f"{len(row['expected_best'])} of {row['planned']} trials"
        if row["failed"]:
            counted += f", {row['failed']} failed"
        best = row["best"]
        if best is None:
            all_failed = {trial["score"] for trial in row["finalists"]} == {0}
            why = "all finalists failed" if all_failed else "the search is not complete"
            lines.append(f"{label}: {why} ({counted})")
            continue
        values = ", ".join(f"{name} = {value}" for name, value in best["parameters"].items())
        line = f"{label}: {values} with {100 * best['score']:.1f} % ({counted})"
        for name, side in row["edges"].items():
            line += f"; {name} lies at the {side} edge of its range: widen it"
        lines.append(line)
    return lines
