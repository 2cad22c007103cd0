"""What a search has found: the file, and its sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsdg import files
from fedsdg.experiment.config import Config
from fedsdg.experiment.method_entries import MethodConfig
from fedsdg.experiment.search.scores import CRITERION, Outcome
from fedsdg.experiment.search.trials import TrialRun, searched_settings
from fedsdg.experiment.search_space import TWO_STAGE, Axis, expected_best
from fedsdg.parts import plain


def known_outcomes(found: Mapping[str, Any]) -> dict[tuple[Any, ...], Outcome]:
    """The outcomes that a file of a search holds, by the keys of their runs."""
    known: dict[tuple[Any, ...], Outcome] = {}
    for label, method in found.get("methods", {}).items():
        # Files of an older form hold no runs that could be taken over.
        if not isinstance(method, Mapping):
            continue
        beyond = (method.get("beyond") or {}).get("trials", ())
        for trial in (*method.get("trials", ()), *beyond, *method.get("finalists", ())):
            for run in trial["runs"]:
                place = (run["dataset"], run["skew"], run["seed"], run["config_hash"])
                known[(label, trial["number"], *place)] = {
                    name: run[name] for name in ("score", "error", "test") if name in run
                }
    return known


def header_of(config: Config) -> dict[str, Any]:
    """What the file says of all methods."""
    two_stage = config.search.trials == TWO_STAGE
    return {
        "experiment": config.experiment,
        "criterion": CRITERION,
        **({"trials": TWO_STAGE, "backbone": backbone_recipe(config)} if two_stage else {}),
        "datasets": list(config.datasets),
        "skews": searched_settings(config),
        "seeds": list(config.search.seeds),
    }


def backbone_recipe(config: Config) -> str | None:
    """The hash of how the backbone is made, which is no part of a run's config."""
    recipe = config.backbones.get(config.backbone)
    return None if config.trainable == "full" else files.sha256_json(recipe)


def found_of(
    config: Config, planned: Sequence[TrialRun], outcomes: Mapping[tuple[Any, ...], Outcome]
) -> dict[str, Any]:
    """What the file holds."""
    runs: dict[str, dict[int, list[TrialRun]]] = {}
    for run in planned:
        own = runs.setdefault(run.trial.method.label, {})
        own.setdefault(run.trial.number, []).append(run)
    return {
        **header_of(config),
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
    rows = [of_trial(group, outcomes) for group in runs.values()]
    whole = [row for row in rows if row["score"] is not None]
    best = best_of(rows)
    return {
        "entry": entry_of(method),
        "space": {name: axis.to_dict() for name, axis in space.items()},
        "planned": len(rows),
        "failed": failures(whole),
        "best": best,
        "edges": edges_of(space, best),
        "expected_best": expected(whole),
        "trials": rows,
    }


def best_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The best of the trials that have a score; of equal ones the first."""
    whole = [row for row in rows if row["score"] is not None]
    best = max(whole, key=lambda row: row["score"], default=None)
    if best is None:
        return None
    return {"trial": best["number"], "parameters": best["parameters"], "score": best["score"]}


def edges_of(space: Mapping[str, Axis], best: Mapping[str, Any] | None) -> dict[str, str]:
    """Parameter → side, where the best point lies at an end of a range."""
    if best is None:
        return {}
    found = {name: axis.edge(best["parameters"][name]) for name, axis in space.items()}
    return {name: side for name, side in found.items() if side is not None}


def expected(whole: Sequence[Mapping[str, Any]]) -> list[float]:
    """The expected best of 1 … n of the n trials, all of which have a score."""
    return [_rounded(value) for value in expected_best([row["score"] for row in whole])]


def failures(rows: Sequence[Mapping[str, Any]]) -> int:
    """Trials with a run that failed."""
    return sum(any(run["error"] for run in row["runs"]) for row in rows)


def of_trial(
    runs: Sequence[TrialRun], outcomes: Mapping[tuple[Any, ...], Outcome]
) -> dict[str, Any]:
    """What the file says of a trial that consists of these runs."""
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
                **({"test": outcome["test"]} if "test" in outcome else {}),
                "config_hash": run.config.hash,
            }
            for run, outcome in done
        ],
    }


def _rounded(value: float) -> float:
    return round(value, 6)


def entry_of(method: MethodConfig) -> dict[str, Any]:
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
        if method.get("beyond"):
            line += f"; {', '.join(method['beyond']['space'])} widened once"
        remedy = "" if "finalists" in method else ": widen it"
        for name, side in method["edges"].items():
            line += f"; {name} lies at the {side} edge of its range{remedy}"
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


def tuned_file(output: Path) -> Path:
    """Where the values found lie, beside the file of the search: ``needs.tuned.yaml``."""
    return output.with_suffix(".tuned.yaml")


def tuned_values(found: Mapping[str, Any]) -> str:
    """The values found as ``tuned: FILE`` of a config reads them: label → values, in YAML."""
    import yaml

    lines = [
        f"# Found by `fedsdg search` for {found['experiment']}; the config names this file as",
        "# `tuned`, and its values are laid over the entries of `methods`.",
    ]
    for label, method in found["methods"].items():
        if method["best"] is not None:
            row = {label: method["best"]["parameters"]}
            text = yaml.safe_dump(row, default_flow_style=None, sort_keys=False, width=1000)
            lines.append(text.rstrip())
    return "\n".join(lines) + "\n"


def read_found(file: Path) -> dict[str, Any]:
    """What a search wrote, or an error that says what the file is instead."""
    if not file.is_file():
        raise FileNotFoundError(f"there is no search in {file}; make it with 'fedsdg search'")
    found = files.read_json(file)
    if not isinstance(found, dict) or "criterion" not in found:
        raise ValueError(f"{file} is not the outcome of a search; make it with 'fedsdg search'")
    return found
