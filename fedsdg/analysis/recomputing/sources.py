"""Whether what a record keeps beside its tables is of its runs: backbones, partitions, origins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from fedsdg.analysis.recomputing.faults import Fault
from fedsdg.analysis.record import ORIGINS, read_origins
from fedsdg.analysis.summary import Summary
from fedsdg.files import read_json
from fedsdg.files.places import DIVISION, run_below, split_setting


def source_faults(root: Path, summary: Summary) -> Iterator[Fault]:
    """Hashes that the runs of a record do not have, and runs of which nothing says where from."""
    done = [run for run in summary.runs if run["status"] == "ok"]
    yield from _backbones(root, summary.folder, done)
    yield from _partitions(root, summary.folder, done)
    folders = {run_below(run): None for run in done}
    known = {name for entry in read_origins(summary.folder, folders) for name in entry["runs"]}
    file = _shown(root, summary.folder / ORIGINS)
    if left := [folder for folder in folders if folder not in known]:
        because = f"it does not say where {len(left)} runs were made, the first {left[0]}"
        yield Fault(file, "", "", "", because)


def _backbones(root: Path, record: Path, runs: list[dict[str, Any]]) -> Iterator[Fault]:
    """The facts of a backbone state its hash, which its runs have."""
    used = {(json.loads(run["config"]).get("backbone"), run["backbone_hash"]): None for run in runs}
    for name, digest in used:
        file = record / "backbones" / f"{name}.json"
        if name is None or not file.is_file():
            continue
        stated = read_json(file).get("sha256")
        if stated != digest:
            yield Fault(_shown(root, file), "sha256", str(stated), str(digest))


def _partitions(root: Path, record: Path, runs: list[dict[str, Any]]) -> Iterator[Fault]:
    """A partition states its hash, which the runs that were made on it have."""
    used = {}
    for run in runs:
        skew, _ = split_setting(run["skew"])
        used[DIVISION.format_map({**run, "skew": skew})] = run["partition_hash"]
    for place, digest in used.items():
        file = record / "partitions" / place
        if file.is_file():
            stated = json.loads((pq.read_schema(file).metadata or {}).get(b"fedsdg", b"{}"))
            if stated.get("sha256") != digest:
                yield Fault(_shown(root, file), "sha256", str(stated.get("sha256")), str(digest))


def _shown(root: Path, file: Path) -> str:
    return file.relative_to(root).as_posix()
