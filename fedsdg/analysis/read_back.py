"""Read the runs of a summary back, as they were gathered: they give the same files again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedsdg.analysis.summarise import Gathered
from fedsdg.analysis.summary_schemas import (
    IDENTITY_SCHEMA,
    LATER_SCHEMA,
    RECORD_SCHEMAS,
    RUNS_SCHEMA,
    SUMMARY_TIMINGS_SCHEMA,
)
from fedsdg.files.records import (
    CLIENTS_SCHEMA,
    ROUNDS_SCHEMA,
    more,
    read_parquet,
)


def read_summary(summary_dir: str | Path) -> list[Gathered]:
    """The runs that ``write_summary`` wrote, in its order; they give the same files again.

    Raises ``ValueError`` that names the file which is damaged, missing or does not fit the others.
    """
    folder = Path(summary_dir)
    rows = [
        {name: row.get(name) for name in (*RUNS_SCHEMA.names, *LATER_SCHEMA.names)}
        for row in _readable(folder / "runs.parquet").to_pylist()
    ]
    names = [_identity(row) for row in rows]
    parts: dict[str, dict[tuple[Any, ...], pa.Table]] = {}
    for kind in RECORD_SCHEMAS:
        file = folder / f"{kind}.parquet"
        parts[kind] = _by_run(_readable(file), file)
        if unknown := parts[kind].keys() - set(names):
            raise _unreadable(file, f"its run {min(unknown)} is none of runs.parquet")
    runs = []
    for row, name in zip(rows, names, strict=True):
        if row["status"] == "ok" and name not in parts["rounds"]:
            raise _unreadable(folder / "rounds.parquet", f"it has no rows of the run {name}")
        runs.append(
            Gathered(
                row,
                _own(parts["rounds"].get(name), ROUNDS_SCHEMA, more("rounds").names),
                _own(parts["clients"].get(name), CLIENTS_SCHEMA, more("clients").names),
                _own(parts["timings"].get(name), SUMMARY_TIMINGS_SCHEMA),
            )
        )
    return runs


def _identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in IDENTITY_SCHEMA.names)


def _readable(file: Path) -> pa.Table:
    """A file of a summary that has at least the identity columns."""
    try:
        table = read_parquet(file)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(file, str(error).splitlines()[0]) from error
    if lacking := set(IDENTITY_SCHEMA.names) - set(table.column_names):
        raise _unreadable(file, f"it lacks the column {sorted(lacking)[0]!r}")
    return table


def _unreadable(file: Path, what: str) -> ValueError:
    return ValueError(
        f"{file} is damaged ({what}); restore it from the repository, or make it anew from runs "
        "with 'fedsdg record' without --merge"
    )


def _by_run(table: pa.Table, file: Path) -> dict[tuple[Any, ...], pa.Table]:
    """Identity of a run -> its rows, which stand together."""
    columns = [table[name].to_pylist() for name in IDENTITY_SCHEMA.names]
    names = list(zip(*columns, strict=True))
    begins = [k for k, name in enumerate(names) if not k or name != names[k - 1]]
    found = {}
    for begin, end in zip(begins, [*begins[1:], len(names)], strict=True):
        if names[begin] in found:
            raise _unreadable(file, f"the rows of the run {names[begin]} do not stand together")
        found[names[begin]] = table.slice(begin, end - begin)
    return found


def _own(table: pa.Table | None, schema: pa.Schema, more: Sequence[str] = ()) -> pa.Table:
    """A run's own record: without its identity, and without what only other runs have.

    ``more``: the names of columns beyond the schema, in their order.
    """
    if table is None:
        return schema.empty_table()
    others = [name for name in table.column_names if name not in IDENTITY_SCHEMA.names]
    usual = [name for name in schema.names if name in others]
    rest = [name for name in others if name not in schema.names]
    rest.sort(key=lambda name: more.index(name) if name in more else len(more))
    return table.select([*usual, *(name for name in rest if table[name].null_count < len(table))])
