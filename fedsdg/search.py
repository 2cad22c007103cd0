"""Hyper-parameter search: by validation accuracy, on seeds that the grid does not use.

The outcome is a file; choosing what stands in the config is a person's act.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from fedsdg import results
from fedsdg.config import Config, MethodConfig, RunConfig, method_entry
from fedsdg.plugins import Plugin


@dataclass(frozen=True)
class Trial:
    """One candidate on one data set, skew and seed."""

    method: str
    candidate: tuple[tuple[str, Any], ...]
    run: RunConfig
    clients: int


def trials(config: Config) -> Iterator[Trial]:
    """Every candidate of ``search.grids`` on every data set, skew and search seed."""
    for kind, grid in config.search.grids.items():
        fixed = next((m for m in config.methods if m.type == kind), None)
        for values in itertools.product(*grid.values()):
            candidate = dict(zip(grid, values, strict=True))
            method = _candidate(kind, fixed, candidate, config.plugins)
            for dataset, skew, seed in itertools.product(
                config.datasets, config.settings, config.search.seeds
            ):
                yield Trial(
                    kind,
                    tuple(candidate.items()),
                    config.run(dataset, skew, method, seed),
                    config.federation.clients,
                )


def _candidate(
    kind: str,
    fixed: MethodConfig | None,
    candidate: Mapping[str, Any],
    plugins: Sequence[Plugin],
) -> MethodConfig:
    """The method as the config has it, with the candidate's values in place of its own."""
    given = {**fixed.parameters, **fixed.overrides} if fixed else {}
    known = {key: value for key, value in given.items() if value is not None}
    return method_entry({"type": kind, **known, **candidate}, plugins)


def search(config: Config, store: Path, backbone: Path | None, output: Path) -> dict[str, Any]:
    """Run all trials, as many at a time as there are processors, and write the ranking.

    A candidate's score is the mean over data sets, skews and seeds of the clients' mean validation
    accuracy in the last round. The result maps each method to its candidates, best first.
    """
    if backbone and not backbone.is_file():
        raise FileNotFoundError(
            f"there is no backbone {backbone}; make it with 'fedsdg pretrain --output {backbone}'"
        )
    todo = list(trials(config))
    if not todo:
        raise ValueError("the config has no search.grids; say there which values to try")
    workers = min(os.cpu_count() or 1, len(todo))
    scores: list[float] = []
    from tqdm import tqdm

    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        jobs = pool.map(
            _score,
            todo,
            itertools.repeat(config.partition),
            itertools.repeat(store),
            itertools.repeat(backbone),
        )
        bar = tqdm(jobs, total=len(todo), desc="search", disable=not sys.stderr.isatty())
        for trial, score in zip(todo, bar, strict=True):
            scores.append(score)
            if not sys.stderr.isatty():
                named = ", ".join(f"{key}={value}" for key, value in trial.candidate)
                place = f"{trial.run.skew} seed {trial.run.seed}"
                print(f"search: {trial.method} {named} {place}: {score:.4f}", file=sys.stderr)
    ranking = _rank(todo, scores)
    results.write_json(output, {"experiment": config.experiment, "methods": ranking})
    for method, candidates in ranking.items():
        best = candidates[0]
        print(f"{method}: {best['parameters']} with {best['val_accuracy']:.4f}")
    return ranking


def _rank(todo: list[Trial], scores: list[float]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, dict[tuple[tuple[str, Any], ...], list[tuple[str, float]]]] = {}
    for trial, score in zip(todo, scores, strict=True):
        candidates = found.setdefault(trial.method, {})
        candidates.setdefault(trial.candidate, []).append((trial.run.skew, score))
    ranking: dict[str, list[dict[str, Any]]] = {}
    for method, candidates in found.items():
        rows = []
        for candidate, outcomes in candidates.items():
            skews = sorted({skew for skew, _ in outcomes})
            by_skew = {skew: [s for name, s in outcomes if name == skew] for skew in skews}
            rows.append(
                {
                    "parameters": dict(candidate),
                    "val_accuracy": sum(score for _, score in outcomes) / len(outcomes),
                    "by_skew": {name: sum(s) / len(s) for name, s in by_skew.items()},
                    "runs": len(outcomes),
                }
            )
        ranking[method] = sorted(rows, key=lambda row: -row["val_accuracy"])
    return ranking


def _score(trial: Trial, partition: Any, store: Path, backbone: Path | None) -> float:
    """Validation accuracy of one trial; a run that fails scores 0."""
    from fedsdg.models.backbones import load_backbone
    from fedsdg.runs import execute, make_partition, prepare_material

    run = trial.run
    frozen = load_backbone(backbone) if backbone else None
    material = prepare_material(run.dataset, frozen, run.training.device)
    shares = make_partition(run.dataset, run.skew, run.seed, trial.clients, partition)
    with tempfile.TemporaryDirectory() as place:
        failure = execute(run, material, shares, Path(place), store=store, identity={})
        if failure:
            return 0.0
        return float(results.read_json(Path(place) / "result.json")["last"]["val_accuracy"])
