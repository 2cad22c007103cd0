"""Gather the folders of finished runs into a few tidy parquet files, one row per run at the least.

A run that failed, was not run, or left no result at all is a row, never a missing row.
Rows stand in one fixed order, so the same runs give the same bytes; times are kept apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedsdg.analysis.differences import DIFFERENCES_SCHEMA, differences
from fedsdg.analysis.names import NOT_RUN, method_order, skew_order
from fedsdg.analysis.summary import PRIMARY_FILE, read_table
from fedsdg.results import (
    CLIENTS_SCHEMA,
    METRICS,
    METRICS_OF_GROUPS,
    ROUNDS_SCHEMA,
    TIMINGS_SCHEMA,
    canonical_json,
    read_json,
    write_json,
    write_parquet,
)

#: Columns that name a run; they open every file of the summary. ``method`` is the label.
IDENTITY_SCHEMA = pa.schema(
    [
        ("experiment", pa.string()),
        ("dataset", pa.string()),
        ("clients", pa.int64()),
        ("skew", pa.string()),
        ("method", pa.string()),
        ("seed", pa.int64()),
    ]
)

_COUNTS = (
    "bytes_up",
    "bytes_down",
    "client_storage_bytes",
    "communicated_parameters",
    "private_parameters",
    "degenerate_rounds",
    "rounds",
)
#: The reported values of a run, each a mapping of metrics in its ``result.json``.
_REPORTED = ("last", "selected", "quarter")
_VALUES = (*METRICS, *METRICS_OF_GROUPS)
_HASHES = ("config_hash", "partition_hash", "backbone_hash", "source_hash")

RUNS_SCHEMA = pa.schema(
    [
        *IDENTITY_SCHEMA,
        ("type", pa.string()),
        ("status", pa.string()),
        ("error", pa.string()),
        *(
            (f"{at}_{key}", pa.int64() if key == "round" else pa.float64())
            for at in _REPORTED
            for key in ("round", *_VALUES)
        ),
        ("quarter_evaluations", pa.int64()),
        *((name, pa.int64()) for name in _COUNTS),
        *((name, pa.string()) for name in _HASHES),
        ("config", pa.string()),
    ]
)

SUMMARY_TIMINGS_SCHEMA = pa.schema(
    [*TIMINGS_SCHEMA, ("wall_seconds", pa.float64()), ("peak_rss_mb", pa.float64())]
)


@dataclass(frozen=True)
class FailedRun:
    """One run without a result, with the error it recorded, or "not run"."""

    dataset: str
    clients: int
    skew: str
    method: str
    seed: int
    error: str

    def __str__(self) -> str:
        place = f"{self.dataset}/clients~{self.clients}/{self.skew}/{self.method}/seed~{self.seed}"
        return f"{place}: {self.error}"


@dataclass(frozen=True)
class _Run:
    folder: Path
    identity: Mapping[str, Any]
    result: Mapping[str, Any]


def summarise(
    runs_dir: str | Path,
    output_dir: str | Path,
    wanted: Iterable[str] | None = None,
    search: Path | None = None,
    primary: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write {runs,rounds,clients,timings,differences}.parquet and primary.json of an experiment.

    ``runs_dir`` is ``results/runs/{experiment}`` and holds
    ``{dataset}/clients~{K}/{skew}/{method}/seed~{seed}/``. ``rounds`` and ``clients`` are the
    runs' own records with the identity columns in front, and a column that only some runs have is
    null in the others; ``timings`` adds ``wall_seconds`` and
    ``peak_rss_mb`` of provenance.json, and is the only file that differs between two computations.
    ``wanted`` names the folders of the grid relative to ``runs_dir``: runs of a former config are
    then left out, and a run without a folder is a row that was not run. None takes what is there.
    ``search``: what a search of hyper-parameters found, copied to ``search.json``.
    ``primary`` are the comparisons named beforehand, written to primary.json as they are: what was
    named stays with the runs, and the verdicts follow from both (``comparisons``).
    Raises ``FileNotFoundError`` if there is no run folder.
    """
    runs = find_runs(Path(runs_dir), wanted)
    output = Path(output_dir)
    rows = [_run_row(run) for run in runs]
    write_parquet(output / "runs.parquet", rows, RUNS_SCHEMA)
    for name, schema in (("rounds", ROUNDS_SCHEMA), ("clients", CLIENTS_SCHEMA)):
        records = [_records(run.folder / f"{name}.parquet", schema) for run in runs]
        schema = _widened(schema, records)
        parts = [
            _with_identity(run, table, schema) for run, table in zip(runs, records, strict=True)
        ]
        _write(output / f"{name}.parquet", parts, schema)
    timings = [_timings(run) for run in runs]
    _write(output / "timings.parquet", timings, SUMMARY_TIMINGS_SCHEMA)
    write_parquet(output / "differences.parquet", differences(rows), DIFFERENCES_SCHEMA)
    if search is None:
        (output / "search.json").unlink(missing_ok=True)
    else:
        write_json(output / "search.json", read_json(search))
    write_json(output / PRIMARY_FILE, list(primary))


def search_file(experiment: str, results: Path = Path("results")) -> Path | None:
    """The search of an experiment: the one made here, else the committed one, else None."""
    made = results / "search" / f"{experiment}.json"
    places = (made, results / "reference" / experiment / "search.json")
    return next((file for file in places if file.is_file()), None)


def failed_runs(summary_dir: str | Path) -> list[FailedRun]:
    """The runs of a summary whose status is not "ok", in the summary's order.

    Of a run that was not run the error is ``NOT_RUN``.
    """
    columns = ["dataset", "clients", "skew", "method", "seed", "status", "error"]
    rows = read_table(Path(summary_dir) / "runs.parquet", columns).to_pylist()
    failed = []
    for row in rows:
        if (status := row.pop("status")) != "ok":
            error = NOT_RUN if status == NOT_RUN else row["error"] or "no error was recorded"
            failed.append(FailedRun(**{**row, "error": error}))
    return failed


def find_runs(runs_dir: Path, wanted: Iterable[str] | None = None) -> list[_Run]:
    """The runs below ``runs_dir`` in the fixed order: data set, K, skew, method, seed."""
    runs = []
    there = [place for place in runs_dir.glob("*/clients~*/*/*/seed~*") if place.is_dir()]
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
        runs.append(_Run(folder, identity, result))
    if not runs:
        raise FileNotFoundError(
            f"no run below {runs_dir}: expected "
            "{dataset}/clients~{K}/{skew}/{method}/seed~{seed}/; train first"
        )
    return sorted(runs, key=lambda run: run_order(run.identity))


def _without_result(folder: Path) -> dict[str, Any]:
    if not folder.exists():
        return {"status": NOT_RUN}
    return {"status": "failed", "error": "the run left no result.json"}


def run_order(identity: Mapping[str, Any]) -> tuple[Any, ...]:
    """Sorting key of a row that carries the identity columns."""
    return (
        identity["dataset"],
        identity["clients"],
        skew_order(identity["skew"]),
        method_order(identity["method"]),
        identity["seed"],
    )


def _number(part: str, folder: Path) -> int:
    name, _, value = part.partition("~")
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{folder}: '{part}' should read {name}~<whole number>") from None


def _run_row(run: _Run) -> dict[str, Any]:
    result = run.result
    row: dict[str, Any] = {
        **run.identity,
        "type": result.get("method"),
        "status": result.get("status", "failed"),
        "error": result.get("error"),
        "config": canonical_json(result["config"]) if "config" in result else None,
    }
    for at in _REPORTED:
        values = result.get(at) or {}
        row |= {f"{at}_{key}": values.get(key) for key in ("round", *_VALUES)}
    row["quarter_evaluations"] = (result.get("quarter") or {}).get("evaluations")
    return row | {name: result.get(name) for name in (*_COUNTS, *_HASHES)}


def _with_identity(run: _Run, table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Prepend the identity columns; columns the file lacks become nulls of the schema's type."""
    columns = {
        field.name: pa.repeat(pa.scalar(run.identity[field.name], field.type), len(table))
        for field in IDENTITY_SCHEMA
    }
    for field in schema:
        known = field.name in table.column_names
        column = table[field.name].cast(field.type) if known else pa.nulls(len(table), field.type)
        columns[field.name] = column
    return pa.table(columns)


def _records(file: Path, schema: pa.Schema) -> pa.Table:
    return read_table(file) if file.exists() else schema.empty_table()


def _widened(schema: pa.Schema, records: Iterable[pa.Table]) -> pa.Schema:
    """The schema with the columns that only some runs have behind it, such as simulated time."""
    for table in records:
        for field in table.schema:
            if field.name not in schema.names and not pa.types.is_null(field.type):
                schema = schema.append(field.remove_metadata())
    return schema


def _timings(run: _Run) -> pa.Table:
    """The run's seconds per round; a run without them keeps one row, for its wall time."""
    file, facts = run.folder / "timings.parquet", run.folder / "provenance.json"
    table = read_table(file) if file.exists() else pa.table({"round": pa.nulls(1, pa.int32())})
    provenance = read_json(facts) if facts.exists() else {}
    for name in ("wall_seconds", "peak_rss_mb"):
        value = pa.scalar(provenance.get(name), pa.float64())
        table = table.append_column(name, pa.repeat(value, len(table)))
    return _with_identity(run, table, SUMMARY_TIMINGS_SCHEMA)


def _write(path: Path, parts: list[pa.Table], schema: pa.Schema) -> None:
    whole = pa.concat_tables(parts).combine_chunks()
    columns = {name: whole[name] for name in whole.column_names}
    write_parquet(path, columns, pa.schema([*IDENTITY_SCHEMA, *schema]))
