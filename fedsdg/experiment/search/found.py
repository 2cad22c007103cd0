"""What a search has found: the file, and its sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsdg import files
from fedsdg.experiment.config import Config
from fedsdg.experiment.method_entries import MethodConfig
from fedsdg.experiment.search.scores import CRITERION, Outcome
from fedsdg.experiment.search.trials import TrialRun
from fedsdg.experiment.search_space import expected_best
from fedsdg.parts import plain


def known_outcomes(output: Path, planned: Sequence[TrialRun]) -> dict[tuple[Any, ...], Outcome]:
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


def found_of(
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
