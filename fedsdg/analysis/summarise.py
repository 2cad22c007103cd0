"""Gather the folders of finished runs into a few tidy parquet files, one row per run at the least.

A run that failed, was not run, or left no result at all is a row, never a missing row.
Rows stand in one fixed order, so the same runs give the same bytes; times are kept apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedsdg.analysis.differences import DIFFERENCES_SCHEMA, differences
from fedsdg.analysis.names import NOT_RUN, method_order, skew_order
from fedsdg.analysis.roles import Roles, roles_of, usual_roles
from fedsdg.files import canonical_json, read_json, write_json
from fedsdg.files.places import (
    ANY_RUN,
    NAMED,
    RECORD,
    ROLES,
    RUN_BELOW,
    SEARCH,
    filled,
    run_below,
)
from fedsdg.files.records import (
    CLIENTS_SCHEMA,
    METRICS,
    METRICS_OF_GROUPS,
    ROUNDS_SCHEMA,
    TIMINGS_SCHEMA,
    read_parquet,
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
        #: ``result.json`` without the config, as canonical JSON: it can be written back from here.
        ("result", pa.string()),
    ]
)

SUMMARY_TIMINGS_SCHEMA = pa.schema(
    [*TIMINGS_SCHEMA, ("wall_seconds", pa.float64()), ("peak_rss_mb", pa.float64())]
)

#: The records of a run, by their names.
RECORDS = {"rounds": ROUNDS_SCHEMA, "clients": CLIENTS_SCHEMA}


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
        return f"{run_below(vars(self))}: {self.error}"


@dataclass(frozen=True)
class _Run:
    folder: Path
    identity: Mapping[str, Any]
    result: Mapping[str, Any]


@dataclass(frozen=True)
class Gathered:
    """A run as the summary holds it: its row of runs.parquet, and what the other files say of it.

    ``rounds`` and ``clients`` are the run's own records; ``timings`` has ``wall_seconds`` and
    ``peak_rss_mb`` beside them.
    """

    row: Mapping[str, Any]
    rounds: pa.Table
    clients: pa.Table
    timings: pa.Table

    @property
    def folder(self) -> str:
        """Where its files lie below ``results/runs/{experiment}``."""
        return run_below(self.row)


def summarise(
    runs_dir: str | Path,
    output_dir: str | Path,
    wanted: Iterable[str] | None = None,
    search: Path | None = None,
    primary: Sequence[Mapping[str, Any]] = (),
    roles: Mapping[str, Any] | None = None,
) -> None:
    """Write {runs,rounds,clients,timings,differences}.parquet, primary.json and roles.json.

    ``runs_dir`` is ``results/runs/{experiment}`` and holds
    ``{dataset}/clients~{K}/{skew}/{method}/seed~{seed}/``. ``rounds`` and ``clients`` are the
    runs' own records with the identity columns in front, and a column that only some runs have is
    null in the others; ``timings`` adds ``wall_seconds`` and
    ``peak_rss_mb`` of provenance.json, and is the only file that differs between two computations.
    ``wanted`` names the folders of the grid relative to ``runs_dir``: runs of a former config are
    then left out, and a run without a folder is a row that was not run. None takes what is there.
    ``search``: what a search of hyper-parameters found, copied to ``search.json``.
    ``primary`` are the comparisons named beforehand, written to primary.json as they are: what was
    named stays with the runs, and the verdicts follow from both (``comparisons``). ``roles``: who
    is the subject, the baselines and the ceiling, written to roles.json; None: the usual ones.
    Raises ``FileNotFoundError`` if there is no run folder.
    """
    runs = [_gathered(run) for run in find_runs(Path(runs_dir), wanted)]
    who = usual_roles() if roles is None else roles_of(roles)
    write_summary(runs, output_dir, who)
    found = Path(output_dir) / "search.json"
    if search is None:
        found.unlink(missing_ok=True)
    else:
        write_json(found, read_json(search))
    write_json(Path(output_dir) / NAMED, list(primary))
    write_json(Path(output_dir) / ROLES, asdict(who))


def write_summary(runs: Iterable[Gathered], output_dir: str | Path, roles: Roles) -> None:
    """Write the parquet files of these runs, in the fixed order whatever theirs."""
    ordered = sorted(runs, key=lambda run: run_order(run.row))
    output = Path(output_dir)
    rows = [run.row for run in ordered]
    write_parquet(output / "runs.parquet", rows, RUNS_SCHEMA)
    for name, schema in RECORDS.items():
        records = [getattr(run, name) for run in ordered]
        schema = _widened(schema, records)
        parts = [
            _with_identity(run.row, table, schema)
            for run, table in zip(ordered, records, strict=True)
        ]
        _write(output / f"{name}.parquet", parts, schema)
    timings = [_with_identity(run.row, run.timings, SUMMARY_TIMINGS_SCHEMA) for run in ordered]
    _write(output / "timings.parquet", timings, SUMMARY_TIMINGS_SCHEMA)
    write_parquet(
        output / "differences.parquet", differences(rows, roles.subject), DIFFERENCES_SCHEMA
    )


def search_file(experiment: str, results: Path = Path("results")) -> Path | None:
    """The search of an experiment: the one made here, else the committed one, else None."""
    made = results / filled(SEARCH, experiment=experiment).relative_to("results")
    places = (
        made,
        results / filled(RECORD, experiment=experiment).relative_to("results") / "search.json",
    )
    return next((file for file in places if file.is_file()), None)


def failed_runs(summary_dir: str | Path) -> list[FailedRun]:
    """The runs of a summary whose status is not "ok", in the summary's order.

    Of a run that was not run the error is ``NOT_RUN``.
    """
    columns = ["dataset", "clients", "skew", "method", "seed", "status", "error"]
    file = Path(summary_dir) / "runs.parquet"
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing; run 'fedsdg summarise' first")
    rows = read_parquet(file, columns).to_pylist()
    failed = []
    for row in rows:
        if (status := row.pop("status")) != "ok":
            error = NOT_RUN if status == NOT_RUN else row["error"] or "no error was recorded"
            failed.append(FailedRun(**{**row, "error": error}))
    return failed


def find_runs(runs_dir: Path, wanted: Iterable[str] | None = None) -> list[_Run]:
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
        runs.append(_Run(folder, identity, result))
    if not runs:
        raise FileNotFoundError(f"no run below {runs_dir}: expected {RUN_BELOW}/; train first")
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
        "result": _without_config(result) if "config" in result else None,
    }
    for at in _REPORTED:
        values = result.get(at) or {}
        row |= {f"{at}_{key}": values.get(key) for key in ("round", *_VALUES)}
    row["quarter_evaluations"] = (result.get("quarter") or {}).get("evaluations")
    return row | {name: result.get(name) for name in (*_COUNTS, *_HASHES)}


def _without_config(result: Mapping[str, Any]) -> str:
    return canonical_json({key: value for key, value in result.items() if key != "config"})


def _with_identity(row: Mapping[str, Any], table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Prepend the identity columns; columns the file lacks become nulls of the schema's type."""
    columns = {
        field.name: pa.repeat(pa.scalar(row[field.name], field.type), len(table))
        for field in IDENTITY_SCHEMA
    }
    for field in schema:
        known = field.name in table.column_names
        column = table[field.name].cast(field.type) if known else pa.nulls(len(table), field.type)
        columns[field.name] = column
    return pa.table(columns)


def _gathered(run: _Run) -> Gathered:
    rounds, clients = (
        _records(run.folder / f"{name}.parquet", schema) for name, schema in RECORDS.items()
    )
    return Gathered(_run_row(run), rounds, clients, _timings(run))


def _records(file: Path, schema: pa.Schema) -> pa.Table:
    return read_parquet(file) if file.exists() else schema.empty_table()


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
    table = read_parquet(file) if file.exists() else pa.table({"round": pa.nulls(1, pa.int32())})
    provenance = read_json(facts) if facts.exists() else {}
    for name in ("wall_seconds", "peak_rss_mb"):
        value = pa.scalar(provenance.get(name), pa.float64())
        table = table.append_column(name, pa.repeat(value, len(table)))
    return table


def _write(path: Path, parts: list[pa.Table], schema: pa.Schema) -> None:
    whole = pa.concat_tables(parts).combine_chunks()
    columns = {name: whole[name] for name in whole.column_names}
    write_parquet(path, columns, pa.schema([*IDENTITY_SCHEMA, *schema]))
