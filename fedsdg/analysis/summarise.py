"""Gather runs into a summary, a few tidy parquet files in one fixed order of rows; read it back.

A run that failed, was not run, or left no result at all is a row, never a missing row. The same
runs give the same bytes; times are kept apart. Tables of thousands of runs do not fit into memory,
so they are read one after another and written a row group at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedsdg.analysis.differences import DIFFERENCES_SCHEMA, differences
from fedsdg.analysis.names import NOT_RUN, method_order, skew_order
from fedsdg.analysis.summary import Roles, Summary, roles_of, usual_roles
from fedsdg.files import canonical_json, read_json, records, require_unchanged, write_json
from fedsdg.files.places import ANY_RUN, NAMED, RECORD, ROLES, RUN_BELOW, SEARCH, filled, run_below
from fedsdg.files.records import more, read_parquet, write_parquet, write_tables

#: Columns that name a run, in front of every file of a summary. ``method`` is the label.
IDENTITY_SCHEMA = pa.schema(
    [
        (name, pa.int64() if name in ("clients", "seed") else pa.string())
        for name in ("experiment", "dataset", "clients", "skew", "method", "seed")
    ]
)

#: The reported rounds of a run, each a mapping of metrics in its ``result.json``.
_REPORTED = ("last", "selected", "quarter")
_COUNTS = (
    "quarter_evaluations",
    "bytes_up",
    "bytes_down",
    "client_storage_bytes",
    "communicated_parameters",
    "private_parameters",
    "degenerate_rounds",
    "rounds",
)
_HASHES = ("config_hash", "partition_hash", "backbone_hash", "source_hash")

#: Columns of runs.parquet. ``result`` is ``result.json`` without the config; both are canonical
#: JSON, from which the file can be written back.
RUNS_SCHEMA = pa.schema(
    [
        *IDENTITY_SCHEMA,
        *((name, pa.string()) for name in ("type", "status", "error")),
        *(
            (f"{at}_{key}", pa.int64() if key == "round" else pa.float64())
            for at in _REPORTED
            for key in ("round", *records.METRICS, *records.METRICS_OF_GROUPS)
        ),
        *((name, pa.int64()) for name in _COUNTS),
        *((name, pa.string()) for name in (*_HASHES, "config", "result")),
    ]
)

#: Columns of runs.parquet that a summary has only if one of its runs has a value there.
LATER_SCHEMA = pa.schema(
    [
        ("personal_steps", pa.int64()),
        *((name, pa.float64()) for name in ("gate_travel", "gates_a", "gates_b")),
    ]
)

#: Columns of timings.parquet that come from the provenance of a run.
_MEASURED = ("wall_seconds", "peak_rss_mb")
#: The other files with rows of every run. Rounds and clients may have more columns, which only
#: some runs record.
TABLES = {
    "rounds": records.ROUNDS_SCHEMA,
    "clients": records.CLIENTS_SCHEMA,
    "timings": pa.schema([*records.TIMINGS_SCHEMA, *((name, pa.float64()) for name in _MEASURED)]),
}


@dataclass(frozen=True)
class Run:
    """A run, whether its tables lie in its own folder or in a summary."""

    row: Mapping[str, Any]
    """Its row of runs.parquet."""
    schema: Callable[[str], pa.Schema]
    """Name of a table (``TABLES``) -> the columns that this run has."""
    table: Callable[[str], pa.Table]
    """Name of a table -> its rows, which may be read anew with every call."""

    @property
    def folder(self) -> str:
        """Path of its files below ``results/runs/{experiment}``."""
        return run_below(self.row)


def find_runs(runs_dir: Path, wanted: Iterable[str] | None = None) -> list[Run]:
    """Find the runs below a folder, in the order of a summary.

    Args:
        runs_dir: ``results/runs/{experiment}``, which holds folders of runs (``RUN_BELOW``).
        wanted: The folders of the grid, relative to ``runs_dir``. A folder that is missing there
            is a run that was not run. By default the folders that exist.

    Raises:
        FileNotFoundError: There is no run.
        ValueError: A folder is misnamed.
    """
    if wanted is None:
        folders = [folder for folder in runs_dir.glob(ANY_RUN) if folder.is_dir()]
    else:
        folders = [runs_dir / below for below in wanted]
    if not folders:
        raise FileNotFoundError(f"no run below {runs_dir}: expected {RUN_BELOW}/; train first")
    runs = []
    for folder in folders:
        dataset, clients, skew, method, seed = folder.relative_to(runs_dir).parts
        result = _result(folder)
        identity = {
            "experiment": result.get("experiment", runs_dir.resolve().name),
            "dataset": dataset,
            "clients": _number(clients, folder),
            "skew": skew,
            "method": method,
            "seed": _number(seed, folder),
        }
        row = {**_run_row(result), **identity}
        runs.append(Run(row, partial(_schema_in, folder), partial(_table_in, folder)))
    return sorted(runs, key=lambda run: run_order(run.row))


def run_order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Sorting key of rows with the identity columns: data set, clients, skew, method, seed."""
    cell = row["dataset"], row["clients"], skew_order(row["skew"])
    return *cell, method_order(row["method"]), row["seed"]


def _result(folder: Path) -> dict[str, Any]:
    if not folder.exists():
        return {"status": NOT_RUN}
    file = folder / "result.json"
    result = read_json(file) if file.exists() else {"error": "the run left no result.json"}
    return {"status": "failed", **result}


def _number(part: str, folder: Path) -> int:
    name, _, value = part.partition("~")
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{folder}: '{part}' should read {name}~<whole number>") from None


def _run_row(result: Mapping[str, Any]) -> dict[str, Any]:
    """The row of runs.parquet, without the identity."""
    values = {**result, "type": result.get("method"), "config": None}
    for at in _REPORTED:
        values |= {f"{at}_{key}": value for key, value in (result.get(at) or {}).items()}
    if "config" in result:
        values["config"] = canonical_json(result["config"])
        outcome = {key: value for key, value in result.items() if key != "config"}
        values["result"] = canonical_json(outcome)
    return {name: values.get(name) for name in (*RUNS_SCHEMA.names, *LATER_SCHEMA.names)}


def _schema_in(folder: Path, name: str) -> pa.Schema:
    file = folder / f"{name}.parquet"
    if name == "timings" or not file.exists():
        return TABLES[name]
    require_unchanged(file)
    return pq.read_schema(file)


def _table_in(folder: Path, name: str) -> pa.Table:
    """A table of a run; empty where the run left no such file.

    ``timings`` has wall_seconds and peak_rss_mb of the provenance in every row, and a run without
    timings keeps one row for them.
    """
    file, facts = folder / f"{name}.parquet", folder / "provenance.json"
    if name != "timings":
        return read_parquet(file) if file.exists() else TABLES[name].empty_table()
    table = read_parquet(file) if file.exists() else pa.table({"round": pa.nulls(1, pa.int32())})
    provenance = read_json(facts) if facts.exists() else {}
    for column in _MEASURED:
        value = pa.scalar(provenance.get(column), pa.float64())
        table = table.append_column(column, pa.repeat(value, len(table)))
    return table


def summarise(
    runs_dir: str | Path,
    output_dir: str | Path,
    wanted: Iterable[str] | None = None,
    search: Path | None = None,
    primary: Sequence[Mapping[str, Any]] = (),
    roles: Mapping[str, Any] | None = None,
) -> None:
    """Gather the runs of an experiment into the files of a summary.

    Args:
        runs_dir: ``results/runs/{experiment}``; see ``find_runs``.
        output_dir: Where to write {runs,rounds,clients,timings,differences}.parquet, primary.json,
            roles.json and search.json. Only timings.parquet differs between two computations.
        wanted: The folders of the grid, relative to ``runs_dir``, so that runs of a former config
            are left out. By default the folders that exist.
        search: The result of a search of hyper-parameters, copied to search.json.
        primary: The comparisons named beforehand. They stay with the runs, and the verdicts follow
            from both (``comparisons``).
        roles: The subject, the baselines and the ceiling; the usual ones by default.

    Raises:
        FileNotFoundError: There is no run.
        ValueError: A folder is misnamed, or a file of a run is damaged.
    """
    output = Path(output_dir)
    stated = usual_roles() if roles is None else roles_of(roles)
    write_summary(find_runs(Path(runs_dir), wanted), output, stated)
    if search is None:
        (output / "search.json").unlink(missing_ok=True)
    else:
        write_json(output / "search.json", read_json(search))
    write_json(output / NAMED, list(primary))
    write_json(output / ROLES, asdict(stated))


def write_summary(runs: Iterable[Run], output_dir: str | Path, roles: Roles) -> None:
    """Write the parquet files of a summary.

    Args:
        runs: At least one run. Their order does not matter.
        output_dir: The folder of the summary.
        roles: They name the subject of differences.parquet.
    """
    output = Path(output_dir)
    ordered = sorted(runs, key=lambda run: run_order(run.row))
    rows = [run.row for run in ordered]
    write_parquet(output / "runs.parquet", rows, RUNS_SCHEMA, LATER_SCHEMA)
    for name, usual in TABLES.items():
        columns = _widened(usual, (run.schema(name) for run in ordered))
        schema = pa.schema([*IDENTITY_SCHEMA, *columns])
        tables = (_named(run.row, run.table(name), schema) for run in ordered)
        # A small table weighs far more than its numbers, so a few are joined before all are.
        few = in_groups(tables, records.ROWS_OF_A_GROUP // 16)
        groups = in_groups(few, records.ROWS_OF_A_GROUP)
        write_tables(output / f"{name}.parquet", groups, schema)
    compared = differences(rows, roles.subject)
    write_parquet(output / "differences.parquet", compared, DIFFERENCES_SCHEMA)


def _widened(schema: pa.Schema, others: Iterable[pa.Schema]) -> pa.Schema:
    """The schema, followed by the columns that only some of the others have."""
    fields = {field.name: field for field in schema}
    for other in others:
        for name in [name for name in other.names if name not in fields]:
            if not pa.types.is_null((field := other.field(name)).type):
                fields[name] = field.remove_metadata()
    return pa.schema(list(fields.values()))


def _named(row: Mapping[str, Any], table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A run's table behind its identity, null in columns that the run lacks."""
    rows, present = len(table), set(table.column_names)
    identity = [pa.repeat(pa.scalar(row[f.name], f.type), rows) for f in IDENTITY_SCHEMA]
    values = [
        table[field.name].cast(field.type) if field.name in present else pa.nulls(rows, field.type)
        for field in list(schema)[len(identity) :]
    ]
    return pa.table([*identity, *values], schema=schema)


def in_groups(tables: Iterable[pa.Table], length: int) -> Iterator[pa.Table]:
    """Cut the rows of many tables into groups, each contiguous in memory.

    Args:
        tables: At least one table; all have one schema.
        length: The number of rows of every group but the last.

    Yields:
        At least one group. Only what the current group needs is in memory.
    """
    waiting: list[pa.Table] = []
    rows, full = 0, False
    for table in tables:
        waiting.append(table)
        rows += len(table)
        while rows >= length:
            whole = pa.concat_tables(waiting)
            waiting = [whole.slice(length)]
            rows, full = rows - length, True
            group = whole.slice(0, length).combine_chunks()
            del whole  # or its rows would lie in memory beside the group
            yield group
            del group  # or it would lie in memory beside the next one
    if rows or not full:
        yield pa.concat_tables(waiting).combine_chunks()


def read_summary(summary_dir: str | Path) -> list[Run]:
    """Read the runs that ``write_summary`` wrote; writing them gives the same files again.

    Raises:
        ValueError: A file is damaged, missing, or does not fit the others.
    """
    folder = Path(summary_dir)
    columns = (*RUNS_SCHEMA.names, *LATER_SCHEMA.names)
    rows = _readable(folder / "runs.parquet").to_pylist()
    rows = {run_below(row): {name: row.get(name) for name in columns} for row in rows}
    parts = {name: _by_run(folder / f"{name}.parquet", name, rows.keys()) for name in TABLES}
    runs = []
    for below, row in rows.items():
        if row["status"] == "ok" and below not in parts["rounds"]:
            raise _damaged(folder / "rounds.parquet", f"it has no rows of the run {below}")
        tables = {name: parts[name].get(below, TABLES[name].empty_table()) for name in TABLES}
        runs.append(_recorded(row, tables))
    return runs


def _recorded(row: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> Run:
    return Run(row, lambda name: tables[name].schema, lambda name: tables[name])


def _readable(file: Path) -> pa.Table:
    """A file of a summary that has at least the identity columns."""
    try:
        table = read_parquet(file)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(file, str(error).splitlines()[0]) from error
    if lacking := set(IDENTITY_SCHEMA.names) - set(table.column_names):
        raise _damaged(file, f"it lacks the column {min(lacking)!r}")
    return table


def _damaged(file: Path, why: str) -> ValueError:
    return ValueError(
        f"{file} is damaged ({why}); restore it from the repository, or make it anew from runs "
        "with 'fedsdg record' without --merge"
    )


def _by_run(file: Path, name: str, known: Collection[str]) -> dict[str, pa.Table]:
    """Folder of a run -> its rows, with the columns that the run itself recorded, in its order."""
    table, identity = _readable(file), IDENTITY_SCHEMA.names
    extra = [] if name == "timings" else more("rounds" if name == "rounds" else "clients").names
    order = {column: i for i, column in enumerate([*TABLES[name].names, *extra])}
    columns = [column for column in table.column_names if column not in identity]
    columns.sort(key=lambda column: order.get(column, len(order)))
    frame = table.select(identity).to_pandas()
    runs: dict[str, pa.Table] = {}
    for values, rows in frame.groupby(identity, dropna=False).indices.items():
        below = run_below(dict(zip(identity, values, strict=True)))
        if below not in known:
            raise _damaged(file, f"its run {below} is none of runs.parquet")
        if rows[-1] - rows[0] >= len(rows):
            raise _damaged(file, f"the rows of the run {below} do not stand together")
        part = table.slice(rows[0], len(rows))
        # Columns that only other runs have are null throughout.
        has = [c for c in columns if c in TABLES[name].names or part[c].null_count < len(part)]
        runs[below] = part.select(has)
    return runs


def search_file(experiment: str, results: Path = Path("results")) -> Path | None:
    """Return the search of an experiment: the one made here, else the recorded one, else None.

    Args:
        experiment: Its name.
        results: The folder of results and records.
    """
    names = {"experiment": experiment}
    made, record = (results / filled(p, **names).relative_to("results") for p in (SEARCH, RECORD))
    return next((file for file in (made, record / "search.json") if file.is_file()), None)


def failed_runs(summary_dir: str | Path) -> dict[str, str]:
    """Return folder -> error of the runs that are not ok, in the summary's order.

    The error of a run that was not run is ``NOT_RUN``.

    Raises:
        FileNotFoundError: There is no summary.
    """
    errors = {}
    for row in Summary(summary_dir).runs:
        if row["status"] == NOT_RUN:
            errors[run_below(row)] = NOT_RUN
        elif row["status"] != "ok":
            errors[run_below(row)] = row["error"] or "no error was recorded"
    return errors
