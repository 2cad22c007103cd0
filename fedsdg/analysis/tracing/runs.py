"""The runs behind a row of unrounded numbers, and what is known of each of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from fedsdg.analysis.progress import YARDSTICK
from fedsdg.analysis.record import read_origins
from fedsdg.analysis.robustness import ARENA, under_attack
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.sweeps import LINE, swept_runs
from fedsdg.analysis.tracing.selection import RUN, key
from fedsdg.files.places import joined_setting, run_below

#: Columns that name a method of which the number is computed.
_METHODS = ("method", "subject", "rival", "rival_method")
_HASHES = ("config_hash", "partition_hash", "backbone_hash", "source_hash")


def runs_behind(summary: Summary, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The runs of a summary that a row of a table's or figure's unrounded numbers stands on.

    ``row`` names them by the columns that it has: where they lie (data set, clients, skew, with its
    scenario or apart from it), whose they are (method, or subject and rival) and their seed; a row
    under an attack or of a sweep by the runs that were put there. None where no column says so,
    as in the trials of a search.
    """
    done = [run for run in summary.runs if run["status"] == "ok"]
    if "attack" in row and "share" in row:
        return _joined(done, under_attack(summary), row, ARENA)
    if {"key", "others", "value"} <= row.keys():
        return _joined(done, swept_runs(summary), row, LINE)
    methods = {row[name] for name in _METHODS if name in row}
    if not methods or ("skew" not in row and "dataset" not in row):
        return []
    if "target (share)" in row:
        methods.add(YARDSTICK)
    wanted: dict[str, set[Any]] = {"method": methods}
    for name in ("dataset", "seed", "skew"):
        if name in row:
            wanted[name] = {row[name]}
    # A table of clients that agree and that differ calls that column so too.
    for name in ("clients", "num_clients"):
        if isinstance(row.get(name), int):
            wanted["clients"] = {row[name]}
    if isinstance(row.get("scenario"), str):
        wanted["skew"] = {joined_setting(row["skew"], row["scenario"])}
    found = [run for run in done if all(run[name] in known for name, known in wanted.items())]
    if "subject" in row and "rival" in row:
        # A paired difference is taken over the seeds that both have.
        seeds = [{run["seed"] for run in found if run["method"] == one} for one in methods]
        found = [run for run in found if all(run["seed"] in own for own in seeds)]
    return found


def _joined(
    done: Iterable[dict[str, Any]], frame: pd.DataFrame, row: Mapping[str, Any], by: list[str]
) -> list[dict[str, Any]]:
    """The runs of a frame of runs (with ``scenario`` apart) that agree with a row in ``by``."""
    for name in by:
        if name in row:
            frame = frame[frame[name] == row[name]]
    settings = [
        joined_setting(*pair) for pair in zip(frame["skew"], frame["scenario"], strict=True)
    ]
    names = frame.assign(skew=settings)[list(RUN)].itertuples(index=False, name=None)
    wanted = set(names)
    return [run for run in done if key(run) in wanted]


def facts_of(summary: Summary, run: Mapping[str, Any]) -> dict[str, Any]:
    """Where a run lies, its hashes, its backbone, and the commit, machine and days it is from.

    The hash of the data is that which the record's partition of the same division states.
    """
    folder = run_below(run)
    config = json.loads(run["config"])
    return {
        "experiment": summary.experiment,
        "run": f"results/runs/{summary.experiment}/{folder}",
        **{name: run[name] for name in RUN},
        **{name: run[name] for name in _HASHES},
        "backbone": config.get("backbone"),
        "config": config,
        "data_hash": _data_hash(summary.folder, run),
        "made": next(iter(_made(summary.folder, folder)), None),
    }


def _made(record: Path, folder: str) -> list[dict[str, Any]]:
    """The entry of the record's provenance that covers a run, without the list of its runs."""
    return [
        {name: value for name, value in origin.items() if name != "runs"}
        for origin in read_origins(record, [folder])
    ]


def _data_hash(record: Path, run: Mapping[str, Any]) -> str | None:
    """SHA-256 of the data set, from any of the record's partitions of as many clients."""
    below = record / "partitions" / run["dataset"] / f"clients~{run['clients']}"
    for file in sorted(below.rglob("*.parquet")):
        stated = (pq.read_schema(file).metadata or {}).get(b"fedsdg")
        if stated:
            found: str | None = json.loads(stated).get("dataset_sha256")
            return found
    return None
