"""What the records of a run hold: training writes these columns, analysis reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedsdg.files import atomic_path, hint, require_unchanged
from fedsdg.files.columns import Column
from fedsdg.files.declarations import declarations

#: The version of what the columns mean, in every file of records; files from before have none, and
#: are of the first. It rises where a column gets another name or another meaning.
FORMAT = 1
_KEY = b"fedsdg.format"
#: How many rows a row group has, which is what pyarrow takes.
ROWS_OF_A_GROUP = 1024 * 1024

#: What evaluation yields for one round; also the keys of ``last`` and ``selected``.
METRICS = (
    "personal_accuracy",
    "personal_std",
    "personal_worst_decile",
    "personal_accuracy_weighted",
    "global_accuracy",
    "global_loss",
    "val_accuracy",
    "expected_accuracy",
    "expected_std",
    "expected_worst_decile",
    "global_val_accuracy",
)

#: Of those, what is reported only where clients differ so: over the clients that agree (a) and
#: that conflict (b), and over those that never train (new).
METRICS_OF_GROUPS = ("expected_accuracy_a", "expected_accuracy_b", "expected_accuracy_new")

ROUNDS_SCHEMA = pa.schema(
    [
        ("round", pa.int32()),
        ("train_loss", pa.float64()),
        ("gate_penalty", pa.float64()),
        ("private_penalty", pa.float64()),
        ("update_norm_mean", pa.float64()),
        ("update_norm_max", pa.float64()),
        ("drift", pa.float64()),
        ("weight_mean", pa.float64()),
        ("weight_std", pa.float64()),
        ("weight_min", pa.float64()),
        ("weight_max", pa.float64()),
        ("weight_zeros", pa.float64()),
        ("weight_entropy", pa.float64()),
        ("alignment_mean", pa.float64()),
        ("alignment_min", pa.float64()),
        ("alignment_max", pa.float64()),
        ("degenerate", pa.float64()),
        ("bytes_up", pa.int64()),
        ("bytes_down", pa.int64()),
        ("local_steps", pa.int64()),
        ("samples_processed", pa.int64()),
        ("evaluated", pa.bool_()),
        *((name, pa.float64()) for name in METRICS),
    ]
)

CLIENTS_SCHEMA = pa.schema(
    [
        ("round", pa.int32()),
        ("client", pa.int32()),
        ("participated", pa.bool_()),
        ("weight", pa.float64()),
        ("alignment", pa.float64()),
        ("update_norm", pa.float64()),
        ("train_loss", pa.float64()),
        ("local_steps", pa.int64()),
        ("samples_processed", pa.int64()),
        ("val_accuracy", pa.float64()),
        ("test_accuracy", pa.float64()),
        ("n_train", pa.int32()),
        ("n_val", pa.int32()),
        ("n_test", pa.int32()),
        ("gates", pa.list_(pa.float64())),
        ("expected_accuracy", pa.float64()),
        ("drawn", pa.bool_()),
        ("steps", pa.int64()),
    ]
)

_KINDS = {
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "list of float64": pa.list_(pa.float64()),
    "binary": pa.binary(),
}


def more(table: Literal["rounds", "clients"], own: Iterable[Column] = ()) -> pa.Schema:
    """The columns beyond the schema of a table that somebody declares; ``own``: of a plugin."""
    said = declarations()["columns"]
    kinds = {one["name"]: one["kind"] for one in said[table]}
    if table == "rounds":
        kinds |= dict.fromkeys(METRICS_OF_GROUPS, "float64")
    else:
        kinds |= {one["name"]: one["kind"] for one in said["diagnostics"]}
    kinds |= {one.name: one.kind for one in own if (one.table == "rounds") == (table == "rounds")}
    return pa.schema([(name, _KINDS[kind]) for name, kind in kinds.items()])


def recorded_diagnostics() -> tuple[str, ...]:
    """What the package's rules say of each client that is recorded, by its name."""
    return tuple(one["name"] for one in declarations()["columns"]["diagnostics"])


TRACE_SCHEMA = pa.schema(
    [
        ("round", pa.int32()),
        ("client", pa.int32()),
        ("step", pa.int32()),
        ("task_loss", pa.float64()),
        ("gate_penalty", pa.float64()),
        ("private_penalty", pa.float64()),
        ("gate_min", pa.float64()),
        ("gate_mean", pa.float64()),
        ("gate_max", pa.float64()),
    ]
)

TIMINGS_SCHEMA = pa.schema(
    [
        ("round", pa.int32()),
        ("train_seconds", pa.float64()),
        ("aggregate_seconds", pa.float64()),
        ("evaluate_seconds", pa.float64()),
    ]
)


def write_parquet(
    path: str | Path,
    rows: Sequence[Mapping[str, Any]] | Mapping[str, Any],
    schema: pa.Schema,
    more: pa.Schema | None = None,
) -> None:
    """Write records (a list of rows, or a mapping of columns) with ``schema``, atomically.

    Columns of ``more`` follow where at least one row has a value there. Raises ``ValueError`` for a
    row with a column that is in neither.
    """
    said = [rows] if isinstance(rows, Mapping) else rows
    known = {*schema.names, *(more.names if more else ())}
    for column in more or ():
        if any(row.get(column.name) is not None for row in said):
            schema = schema.append(column)
    if isinstance(rows, Mapping):
        table = pa.Table.from_pydict(dict(rows), schema=schema)
    else:
        for row in rows:
            if unknown := sorted(set(row) - known):
                raise ValueError(
                    f"{path}: nobody declares the column {unknown[0]!r}{hint(unknown[0], known)}; "
                    "let whoever fills it have it among its `columns`, and run 'make documents'"
                )
        table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    table = table.replace_schema_metadata({_KEY: str(FORMAT)})
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def write_tables(path: str | Path, tables: Iterable[pa.Table], schema: pa.Schema) -> None:
    """Write tables of ``schema`` one behind the other, atomically, with one of them in memory.

    Each becomes a row group. Where all but the last have ``ROWS_OF_A_GROUP`` rows, the file is that
    which ``write_parquet`` makes of all rows at once.
    """
    schema = schema.with_metadata({_KEY: str(FORMAT)})
    with (
        atomic_path(path) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):
        for table in tables:
            writer.write_table(table.cast(schema))
            del table  # or it would lie in memory beside the next one


def read_parquet(
    path: str | Path, columns: list[str] | None = None, where: pc.Expression | None = None
) -> pa.Table:
    """A file of records, or its rows ``where`` they are so; ``seed~0`` in its path is no column.

    Rows that are not asked for take no memory: of a large file the way to read it.
    Raises ``ValueError`` for one whose format is younger than this package, and for one that has
    changed since its hash was written beside it.
    """
    require_unchanged(path)
    # Opened once, and without the machinery for many files: an experiment has thousands of them.
    with pq.ParquetFile(path) as file:
        said = (file.schema_arrow.metadata or {}).get(_KEY, b"1").decode()
        if said != "1" and not (said.isdecimal() and int(said) <= FORMAT):
            raise ValueError(
                f"{path} has records of format {said}, but this version of FedSDG Bench reads "
                f"formats up to {FORMAT}; update it, or make the records anew"
            )
        if columns is None and where is None:
            return file.read(use_threads=False)
    return pq.read_table(path, columns=columns, filters=where, partitioning=None)
