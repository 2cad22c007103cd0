"""Behind every number its runs: values by seed, hashes, machine, days, and how to repeat them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedsdg.analysis.formatting import printed
from fedsdg.analysis.grids import Grid
from fedsdg.analysis.names import OWN, OWN_WORST, Metric, base_method, method_title
from fedsdg.analysis.page.arenas import Arena
from fedsdg.analysis.page.charts import drawn
from fedsdg.analysis.plots.style import leads, looks
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


def metrics_of(summary: Summary) -> list[Metric]:
    """The metrics of the page: the headline first, and nothing twice."""
    return [m for m in summary.metrics if m not in (OWN, OWN_WORST)]


def steps_of(summary: Summary) -> dict[tuple[Any, ...], float]:
    """Local steps of all clients in a whole run, by data set, clients, skew, method and seed."""
    keys = ["dataset", "clients", "skew", "method", "seed"]
    frame = summary.frame("rounds", keys, ["local_steps"]).dropna(subset=["local_steps"])
    return dict(frame.groupby(keys)["local_steps"].sum())


def methods_of(
    arena: Arena, origins: Sequence[Origin], steps: Mapping[tuple[Any, ...], float]
) -> list[dict[str, Any]]:
    """Each method of an arena as the page shows it, with the runs behind its numbers.

    Args:
        arena: The cell.
        origins: ``origins_in`` its summary.
        steps: ``steps_of`` its summary.

    Returns:
        Label, title, ``about`` (the declared method that it is or varies), ``look``, and whether it
        leads: curves show it before anybody chooses. ``values`` are what each run reached and cost:
        the ``seeds`` of the runs that went well, and columns in their order, shares of 1, bytes,
        steps, six digits of each, or None. ``runs`` are columns as well: the hashes, the index of
        the origin (−1 where none is known) and the run's folder; and whether one was made with
        uncommitted ``changes``.
    """
    summary, setting, found = arena.summary, arena.cell.setting, []
    headline = summary.reported_values(arena.cell, summary.personal.key)
    shown = leads(arena.methods, {m: fmean(own.values()) for m, own in headline.items()})
    look = looks(summary.run_methods())
    place = {folder: i for i, origin in enumerate(origins) for folder in origin["runs"]}
    for method in arena.methods:
        runs = arena.runs(method)
        case = (setting.dataset, setting.clients, arena.cell.skew, method)
        ways = [(run["bytes_up"], run["bytes_down"]) for run in runs]
        values = {
            metric.key: [run[f"{summary.reported}_{metric.key}"] for run in runs]
            for metric in metrics_of(summary)
        }
        values["bytes"] = [None if None in both else sum(both) for both in ways]
        values["steps"] = [steps.get((*case, run["seed"])) for run in runs]
        folders = [run_below(run) for run in runs]
        made = [place.get(folder, -1) for folder in folders]
        found.append(
            {
                "label": method,
                "title": method_title(method),
                "about": base_method(method) or method,
                "lead": method in shown,
                "look": drawn(look[method]),
                "values": {
                    "seeds": [run["seed"] for run in runs],
                    **{name: list(map(_rounded, column)) for name, column in values.items()},
                },
                "runs": {
                    **{name: [run[column] for run in runs] for name, column in HASHES.items()},
                    "origin": made,
                    "changes": any(origins[i].get("dirty") for i in made if i >= 0),
                    "folder": folders,
                },
            }
        )
    return found


def _rounded(value: float | None) -> float | None:
    return None if value is None else printed(float(value))


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
