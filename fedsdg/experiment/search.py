"""Hyper-parameter search: equally many trials of every method, by validation accuracy.

Trials are runs on seeds that the grid does not use. The outcome is a file; choosing what stands in
the config is a person's act.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedsdg import files
from fedsdg.experiment.config import Config, MethodConfig, PartitionConfig, RunConfig
from fedsdg.experiment.grid import ALLOCATOR, THREADS, loaded_images, loaded_material
from fedsdg.experiment.loading import Source
from fedsdg.experiment.machine.processes import Failed, Workers
from fedsdg.experiment.search_space import expected_best, points
from fedsdg.files import hint
from fedsdg.files.places import split_setting
from fedsdg.parts import plain

#: A trial's score, as the file says it.
CRITERION = (
    "personal validation accuracy: the share that a client's own model gets right of its own "
    "validation samples, mean over clients, over the evaluations of the last quarter of the "
    "rounds, and over search seeds, skews and data sets; a run that failed counts 0"
)


@dataclass(frozen=True)
class Trial:
    """One point of a method's space."""

    method: MethodConfig
    number: int
    values: Mapping[str, Any]

    @property
    def title(self) -> str:
        named = " ".join(f"{key}={value}" for key, value in self.values.items())
        return f"{self.method.label} trial {self.number}: {named}"


@dataclass(frozen=True)
class TrialRun:
    """A trial on one data set, skew and seed, and where runs are kept."""

    trial: Trial
    dataset: str
    source: Source
    skew: str
    seed: int
    config: RunConfig
    store: Path
    backbone: Path | None
    checkpoint_seconds: float

    @property
    def title(self) -> str:
        return f"{self.trial.title}, {self.dataset} {self.skew} seed {self.seed}"

    @property
    def key(self) -> tuple[Any, ...]:
        """What an outcome is known by; the config's hash tells what was run from what is."""
        place = (self.dataset, self.skew, self.seed)
        return (self.trial.method.label, self.trial.number, *place, self.config.hash)


#: What is known of a run: its score, and its error or None.
Outcome = Mapping[str, Any]


def trials(config: Config) -> list[Trial]:
    """The first trial of every method, then the second of every method, and so on.

    A search that is cut short has therefore tried all methods about equally often. Methods of the
    space that no entry of the config is called are left out. Raises ``ValueError`` where nothing
    is left to try.
    """
    found = []
    for method in config.methods:
        if method.label not in config.search.space:
            continue
        space = config.search.space[method.label]
        drawn = points(space, config.search.trials, min(config.search.seeds), method.label)
        for number, values in enumerate(drawn):
            found.append(Trial(_with(method, values), number, values))
    if not found:
        raise ValueError(
            "the config has nothing to search; say under search.space which values of which "
            "methods to try"
        )
    return sorted(found, key=lambda trial: trial.number)


def _with(method: MethodConfig, values: Mapping[str, Any]) -> MethodConfig:
    """The entry with the trial's values in place of its own."""
    known = method.row.parameters
    own = {**method.parameters, **{k: v for k, v in values.items() if k in known}}
    return MethodConfig(
        method.type,
        method.label,
        own,
        {**method.overrides, **{k: v for k, v in values.items() if k not in known}},
        method.plugin,
    )


def trial_runs(
    config: Config, tried: Sequence[Trial], store: Path, backbone: Path | None
) -> Iterator[TrialRun]:
    """Every trial on every skew and search seed, one data set after another.

    Raises ``ValueError`` for a skew to search on that the experiment does not have. A config that
    is laid over another keeps that one's, so it is no fault until a search is asked for.
    """
    wanted = config.search.skews or config.settings
    for skew in wanted:
        if skew not in (*config.skews, *config.settings):
            raise ValueError(
                f"search.skews: {skew!r} is no skew of the experiment{hint(skew, config.settings)}"
            )
    settings = [
        setting
        for setting in config.settings
        if setting in wanted or split_setting(setting)[0] in wanted
    ]
    for dataset in config.datasets:
        for trial in tried:
            for setting in settings:
                for seed in config.search.seeds:
                    yield TrialRun(
                        trial,
                        dataset,
                        config.source(dataset),
                        setting,
                        seed,
                        config.run(dataset, setting, trial.method, seed),
                        store,
                        backbone,
                        config.checkpoint_seconds,
                    )


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
    """Run the trials, ``jobs`` at a time (default: a processor each), and write what was found.

    ``only`` are labels of methods, and ``minutes`` after which no run is started; the file then
    holds what is known, and the same call goes on: finished runs lie in the store. Outcomes that
    the file held before, of runs that this call does not come to, stay.

    Raises ``ValueError`` where there is nothing to search or no validation data, and
    ``FileNotFoundError`` where there is no backbone.
    """
    begun = time.monotonic()
    if backbone and not backbone.is_file():
        raise FileNotFoundError(
            f"there is no backbone {backbone}; make it with 'fedsdg pretrain --output {backbone}'"
        )
    tried = trials(config)
    labels = list(dict.fromkeys(trial.method.label for trial in tried))
    for label in only:
        if label not in labels:
            raise ValueError(f"--only {label!r}: no method of the search{hint(label, labels)}")
    planned = list(trial_runs(config, tried, store, backbone))
    outcomes = _known(output, planned)
    todo = [run for run in planned if not only or run.trial.method.label in only]
    deadline = None if minutes is None else begun + 60 * minutes

    def in_time() -> Iterator[TrialRun]:
        for run in todo:
            if deadline is not None and time.monotonic() >= deadline:
                return
            yield run

    jobs = min(jobs or os.cpu_count() or 1, len(todo))
    threads = {name: str(config.training.threads) for name in THREADS}
    done, killed = 0, 0
    found = _found(config, planned, outcomes)
    with Workers(jobs, {**ALLOCATOR, **threads}) as workers, _Progress(len(todo)) as progress:
        for run, outcome in workers.map(_score, in_time()):
            if isinstance(outcome, Failed):
                if outcome.kind != "killed":
                    raise ValueError(f"{run.title}: {outcome}")
                # Not the method's fault: the trial stays open.
                killed += 1
                progress.say(f"{run.title}: {outcome}")
                continue
            done += 1
            outcomes[run.key] = outcome
            progress.finished(run.title, outcome)
            found = _found(config, planned, outcomes)
            files.write_json(output, found)
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

        self._runs, self._done = runs, 0
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
            self.say(f"[{self._done}/{self._runs}] {title}: {reached}")


# --- The file -------------------------------------------------------------------------------------


def _known(output: Path, planned: Sequence[TrialRun]) -> dict[tuple[Any, ...], Outcome]:
    """What the file says of runs that are still planned as they were."""
    if not output.is_file():
        return {}
    wanted = {run.key for run in planned}
    known: dict[tuple[Any, ...], Outcome] = {}
    for label, method in files.read_json(output).get("methods", {}).items():
        # Files of an older form hold no runs that could be taken over.
        for trial in method.get("trials", ()) if isinstance(method, Mapping) else ():
            for run in trial["runs"]:
                place = (run["dataset"], run["skew"], run["seed"], run["config_hash"])
                key = (label, trial["number"], *place)
                if key in wanted:
                    known[key] = {"score": run["score"], "error": run["error"]}
    return known


def _found(
    config: Config, planned: Sequence[TrialRun], outcomes: Mapping[tuple[Any, ...], Outcome]
) -> dict[str, Any]:
    """What the file holds."""
    runs: dict[str, dict[int, list[TrialRun]]] = {}
    for run in planned:
        own = runs.setdefault(run.trial.method.label, {})
        own.setdefault(run.trial.number, []).append(run)
    return {
        "experiment": config.experiment,
        "criterion": CRITERION,
        "datasets": list(config.datasets),
        "skews": list(dict.fromkeys(run.skew for run in planned)),
        "seeds": list(config.search.seeds),
        "methods": {
            method.label: _of_method(config, method, runs[method.label], outcomes)
            for method in config.methods
            if method.label in runs
        },
    }


def _of_method(
    config: Config,
    method: MethodConfig,
    runs: Mapping[int, Sequence[TrialRun]],
    outcomes: Mapping[tuple[Any, ...], Outcome],
) -> dict[str, Any]:
    space = config.search.space[method.label]
    rows = [_of_trial(group, outcomes) for group in runs.values()]
    whole = [row for row in rows if row["score"] is not None]
    best = max(whole, key=lambda row: row["score"], default=None)
    edges = {}
    if best is not None:
        found = {name: axis.edge(best["parameters"][name]) for name, axis in space.items()}
        edges = {name: side for name, side in found.items() if side is not None}
    return {
        "entry": _entry(method),
        "space": {name: axis.to_dict() for name, axis in space.items()},
        "planned": len(rows),
        "failed": sum(any(run["error"] for run in row["runs"]) for row in whole),
        "best": None
        if best is None
        else {"trial": best["number"], "parameters": best["parameters"], "score": best["score"]},
        "edges": edges,
        "expected_best": [_rounded(value) for value in expected_best([r["score"] for r in whole])],
        "trials": rows,
    }


def _of_trial(
    runs: Sequence[TrialRun], outcomes: Mapping[tuple[Any, ...], Outcome]
) -> dict[str, Any]:
    done = [(run, outcomes[run.key]) for run in runs if run.key in outcomes]

    def means(part: Callable[[TrialRun], Any]) -> dict[str, float]:
        scores: dict[str, list[float]] = {}
        for run, outcome in done:
            scores.setdefault(str(part(run)), []).append(outcome["score"])
        return {name: _rounded(sum(of) / len(of)) for name, of in scores.items()}

    whole = len(done) == len(runs)
    mean = sum(outcome["score"] for _, outcome in done) / len(runs)
    return {
        "number": runs[0].trial.number,
        "parameters": dict(runs[0].trial.values),
        # None until all runs are done: a mean over some seeds cannot be compared.
        "score": _rounded(mean) if whole else None,
        "by_skew": means(lambda run: run.skew),
        "by_seed": means(lambda run: run.seed),
        "runs": [
            {
                "dataset": run.dataset,
                "skew": run.skew,
                "seed": run.seed,
                "score": _rounded(outcome["score"]),
                "error": outcome["error"],
                "config_hash": run.config.hash,
            }
            for run, outcome in done
        ],
    }


def _rounded(value: float) -> float:
    return round(value, 6)


def _entry(method: MethodConfig) -> dict[str, Any]:
    """The method's entry as a config would have it: what it says beside the defaults."""
    entry: dict[str, Any] = {"type": method.type}
    if method.label != method.type:
        entry["name"] = method.label
    for key, value in method.parameters.items():
        if value != method.row.parameters[key].default:
            entry[key] = plain(value)
    return {**entry, **method.overrides}


def summary_lines(found: Mapping[str, Any]) -> list[str]:
    """For each method one line: the best values, their score, and optima at an edge."""
    lines = []
    for label, method in found["methods"].items():
        whole = len(method["expected_best"])
        counted = f"{whole} of {method['planned']} trials"
        if method["failed"]:
            counted += f", {method['failed']} failed"
        if method["best"] is None:
            lines.append(f"{label}: no trial is complete ({counted})")
            continue
        best = method["best"]
        named = ", ".join(f"{key} = {value}" for key, value in best["parameters"].items())
        line = f"{label}: {named} with {100 * best['score']:.1f} % ({counted})"
        for name, side in method["edges"].items():
            line += f"; {name} lies at the {side} edge of its range: widen it"
        lines.append(line)
    return lines


def found_entries(found: Mapping[str, Any]) -> str:
    """The values found as entries of a config's ``methods``, in YAML."""
    import yaml

    lines = ["methods:"]
    for method in found["methods"].values():
        if method["best"] is not None:
            entry = {**method["entry"], **method["best"]["parameters"]}
            text = yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=1000)
            lines.append(f"  - {text.strip()}")
    return "\n".join(lines)


def read_found(file: Path) -> dict[str, Any]:
    """What a search wrote, or an error that says what the file is instead."""
    if not file.is_file():
        raise FileNotFoundError(f"there is no search in {file}; make it with 'fedsdg search'")
    found = files.read_json(file)
    if not isinstance(found, dict) or "criterion" not in found:
        raise ValueError(f"{file} is not the outcome of a search; make it with 'fedsdg search'")
    return found


# --- What the processes do ------------------------------------------------------------------------


def _score(run: TrialRun, note: Callable[[Any], None]) -> Outcome:
    """Do one run, or take it from the store; a run that fails scores 0.

    Raises ``ValueError`` where clients have no validation samples: there is nothing to search by.
    """
    from fedsdg.data.partition_record import VAL
    from fedsdg.experiment.runs import execute

    config = _judged_late(run.config)
    material = loaded_material(run.source, run.backbone, config.training.device)
    shares = partition_of(
        run.source, config.skew, run.seed, config.federation.clients, config.partition
    )
    if not shares.sizes()[:, VAL].any():
        raise ValueError(
            f"no client of {run.dataset} has a validation sample, by which the search chooses; "
            "give clients more samples with partition.min_samples"
        )
    with tempfile.TemporaryDirectory() as place:
        failure = execute(
            config,
            material,
            shares,
            Path(place),
            store=run.store,
            identity={},
            checkpoint_seconds=run.checkpoint_seconds,
        )
        if failure:
            return {"score": 0.0, "error": failure}
        result = files.read_json(Path(place) / "result.json")
    # Of a run from before there was a quarter, the last round.
    at = result.get("quarter") or result["last"]
    if at.get("val_accuracy") is None:
        raise ValueError(
            "the run has no validation accuracy, by which the search chooses; give clients "
            "validation samples"
        )
    return {"score": float(at["val_accuracy"]), "error": None}


def _judged_late(config: RunConfig) -> RunConfig:
    """The run without the evaluations that its score does not count, which change nothing else."""
    federation = config.federation
    begin = 3 * federation.rounds // 4 + 1
    return replace(config, federation=replace(federation, evaluate_from=begin))


@lru_cache(maxsize=64)
def partition_of(
    source: Source, skew: str, seed: int, clients: int, settings: PartitionConfig
) -> Any:
    """The partition, made once by each process."""
    from fedsdg.experiment.runs import make_partition

    return make_partition(loaded_images(source), skew, seed, clients, settings)
