"""The folders that runs leave: what is small of them is read at once, the tables when asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedsdg.analysis.names import NOT_RUN
from fedsdg.analysis.summary_schemas import (
    COUNTS,
    HASHES,
    LATER_SCHEMA,
    RECORD_SCHEMAS,
    REPORTED,
    VALUES,
    run_order,
)
from fedsdg.files import canonical_json, read_json, require_unchanged
from fedsdg.files.places import ANY_RUN, RUN_BELOW
from fedsdg.files.records import read_parquet


@dataclass(frozen=True)
class RunFolder:
    """A run as its folder holds it; ``row`` is its row of runs.parquet.

    Its tables are read anew each time: those of thousands of runs do not fit into the memory.
    """

    folder: Path
    row: Mapping[str, Any]

    def schema(self, name: str) -> pa.Schema:
        """The columns of ``rounds``, ``clients`` or ``timings``."""
        file = self.folder / f"{name}.parquet"
        if name == "timings" or not file.exists():
            return RECORD_SCHEMAS[name]
        try:
            return pq.read_schema(file)
        except (OSError, pa.ArrowException):
            require_unchanged(file)
            raise

    def table(self, name: str) -> pa.Table:
        """The rows of ``rounds``, ``clients`` or ``timings``; none where the run left no such file.

        ``timings`` has ``wall_seconds`` and ``peak_rss_mb`` of the provenance in every row, and a
        run without timings keeps one row for them.
        """
        file = self.folder / f"{name}.parquet"
        if name == "timings":
            return _timings(file, self.folder / "provenance.json")
        return read_parquet(file) if file.exists() else RECORD_SCHEMAS[name].empty_table()


def find_runs(runs_dir: Path, wanted: Iterable[str] | None = None) -> list[RunFolder]:
    """The runs below ``runs_dir`` in the fixed order: data set, K, skew, method, seed."""
    runs = []
    there = [place for place in runs_dir.glob(ANY_RUN) if place.is_dir()]
    for folder in there if wanted is None else [runs_dir / place for place in wanted]:
        dataset, clients, skew, method, seed = folder.relative_to(runs_dir).parts
        file = folder / "result.json"
        result = read_json(file) if file.exists() else _without_result(folder)
        identity = {
            "experiment": result.get("experiment", runs_dir.resolve().name),
            "dataset": dataset,
            "clients": _number(clients, folder),
            "skew": skew,
            "method": method,
            "seed": _number(seed, folder),
        }
        runs.append(RunFolder(folder, _run_row(identity, result)))
    if not runs:
        raise FileNotFoundError(f"no run below {runs_dir}: expected {RUN_BELOW}/; train first")
    return sorted(runs, key=lambda run: run_order(run.row))


def _without_result(folder: Path) -> dict[str, Any]:
    if not folder.exists():
        return {"status": NOT_RUN}
    return {"status": "failed", "error": "the run left no result.json"}


def _number(part: str, folder: Path) -> int:
    name, _, value = part.partition("~")
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{folder}: '{part}' should read {name}~<whole number>") from None


def _run_row(identity: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {
        **identity,
        "type": result.get("method"),
        "status": result.get("status", "failed"),
        "error": result.get("error"),
        "config": canonical_json(result["config"]) if "config" in result else None,
        "result": _without_config(result) if "config" in result else None,
    }
    for at in REPORTED:
        values = result.get(at) or {}
        row |= {f"{at}_{key}": values.get(key) for key in ("round", *VALUES)}
    row["quarter_evaluations"] = (result.get("quarter") or {}).get("evaluations")
    return row | {name: result.get(name) for name in (*COUNTS, *HASHES, *LATER_SCHEMA.names)}


def _without_config(result: Mapping[str, Any]) -> str:
    return canonical_json({key: value for key, value in result.items() if key != "config"})


def _timings(file: Path, facts: Path) -> pa.Table:
    table = read_parquet(file) if file.exists() else pa.table({"round": pa.nulls(1, pa.int32())})
    provenance = read_json(facts) if facts.exists() else {}
    for name in ("wall_seconds", "peak_rss_mb"):
        value = pa.scalar(provenance.get(name), pa.float64())
        table = table.append_column(name, pa.repeat(value, len(table)))
    return table
