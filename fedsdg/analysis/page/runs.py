"""Behind every number its runs: values by seed, hashes, machine, days, and how to repeat them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsdg.analysis.formatting import printed
from fedsdg.analysis.grids import Grid
from fedsdg.analysis.names import OWN, OWN_WORST, Metric
from fedsdg.analysis.page.arenas import Arena
from fedsdg.analysis.record import ORIGINS, Origin, origins_of, read_origins
from fedsdg.analysis.summary import Summary
from fedsdg.files.places import run_below

#: How the page calls a hash → its column of runs.parquet.
HASHES = {
    "config": "config_hash",
    "partition": "partition_hash",
    "backbone": "backbone_hash",
    "code": "source_hash",
}


def origins_in(summary: Summary) -> list[Origin]:
    """Where the summary's runs were made: as its record says, else as each run's folder says.

    Empty where neither is there.
    """
    runs = [run_below(run) for run in summary.runs if run["status"] == "ok"]
    file = summary.folder / ORIGINS
    if file.is_file():
        summary.inputs.append(file)
        return read_origins(summary.folder, runs)
    return origins_of(runs, summary.folder.parents[1] / "runs" / summary.experiment)


def said(origin: Origin) -> str:
    """An origin in one line: commit, machine, versions and days."""
    commit = origin.get("commit")
    changed = " with changes that were not committed" if origin.get("dirty") else ""
    parts = [f"commit {commit}{changed}" if commit else "commit not recorded"]
    parts += [str(origin[name]) for name in ("processor", "platform") if origin.get(name)]
    if origin.get("cpu_count"):
        parts.append(f"{origin['cpu_count']} cores")
    if origin.get("device"):
        parts.append(f"on {origin['device']}")
    versions = {"Python": origin.get("python"), **(origin.get("versions") or {})}
    parts.append(", ".join(f"{name} {number}" for name, number in versions.items() if number))
    days = [
        str(origin[name])[:16].replace("T", " ") for name in ("first", "last") if name in origin
    ]
    parts += [" to ".join(days) + " UTC"] if days else []
    return "; ".join(part for part in parts if part)


def steps_of(summary: Summary) -> dict[tuple[Any, ...], float]:
    """Local steps of all clients in a whole run, by data set, clients, skew, method and seed."""
    keys = ["dataset", "clients", "skew", "method", "seed"]
    frame = summary.frame("rounds", keys, ["local_steps"]).dropna(subset=["local_steps"])
    return dict(frame.groupby(keys)["local_steps"].sum())


def values_of(arena: Arena, steps: Mapping[tuple[Any, ...], float]) -> dict[str, dict[str, Any]]:
    """What each method reached and cost, seed by seed.

    Args:
        arena: The cell.
        steps: ``steps_of`` its summary.

    Returns:
        Method → column → its values by seed: shares of 1, bytes, steps; six digits of each.
        ``seeds`` are those of the runs that went well; None stands where a run has no such number.
    """
    summary, found = arena.summary, {}
    setting, skew = arena.cell.setting, arena.cell.skew
    for method in arena.methods:
        runs = arena.runs(method)
        ways = [(run["bytes_up"], run["bytes_down"]) for run in runs]
        place = (setting.dataset, setting.clients, skew, method)
        columns = {
            metric.key: [run[f"{summary.reported}_{metric.key}"] for run in runs]
            for metric in metrics_of(summary)
        }
        columns["bytes"] = [None if None in both else float(sum(both)) for both in ways]
        columns["steps"] = [steps.get((*place, run["seed"])) for run in runs]
        rounded = {
            name: [None if value is None else printed(float(value)) for value in values]
            for name, values in columns.items()
        }
        found[method] = {"seeds": [run["seed"] for run in runs], **rounded}
    return found


def metrics_of(summary: Summary) -> list[Metric]:
    """The metrics of the page: the headline first, and nothing twice."""
    return [m for m in summary.metrics if m not in (OWN, OWN_WORST)]


def runs_behind(arena: Arena, origins: Sequence[Origin]) -> dict[str, dict[str, Any]]:
    """What is behind the numbers of each method.

    Args:
        arena: The cell.
        origins: ``origins_in`` of its summary.

    Returns:
        Method → columns by seed, in the order of ``values_of``: the hashes, the index
        of the origin (−1 where none is known), whether it was made with uncommitted ``changes``,
        and the run's folder.
    """
    place = {folder: i for i, origin in enumerate(origins) for folder in origin["runs"]}
    found = {}
    for method in arena.methods:
        runs = arena.runs(method)
        folders = [run_below(run) for run in runs]
        found[method] = {
            **{name: [run[column] for run in runs] for name, column in HASHES.items()},
            "origin": [place.get(folder, -1) for folder in folders],
            "changes": any(
                origins[place[folder]].get("dirty") for folder in folders if folder in place
            ),
            "folder": folders,
        }
    return found


def commands(arena: Arena, grids: Mapping[str, Grid]) -> dict[str, str]:
    """How a run and all runs of a method are made again.

    Args:
        arena: The cell.
        grids: The published grids, by experiment.

    Returns:
        ``one`` and ``all``, with METHOD, SEED (0) and SEEDS (seed~0 seed~1) to be filled in. Empty
        where no config file of the experiment is known.
    """
    grid = grids.get(arena.summary.experiment)
    if grid is None:
        return {}
    file, cell = shlex.quote(Path(grid.file).as_posix()), arena.cell
    dataset, skew = shlex.quote(cell.setting.dataset), shlex.quote(cell.skew)
    return {
        "one": f"fedsdg run --config {file} --dataset {dataset} --skew {skew} "
        "--method METHOD --seed SEED",
        "all": f"fedsdg run --grid {file} --only {dataset} {skew} METHOD SEEDS",
    }
