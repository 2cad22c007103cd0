"""The tables of very many runs one behind the other, a row group at a time in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from fedsdg.analysis.summary_schemas import IDENTITY_SCHEMA
from fedsdg.files.records import ROWS_OF_A_GROUP

_Part = tuple[Mapping[str, Any], pa.Table]


def widened(schema: pa.Schema, others: Iterable[pa.Schema]) -> pa.Schema:
    """The schema with the columns that only some runs have behind it, such as simulated time."""
    known = set(schema.names)
    for other in others:
        for name in [name for name in other.names if name not in known]:
            if not pa.types.is_null((field := other.field(name)).type):
                schema = schema.append(field.remove_metadata())
                known.add(name)
    return schema


def one_behind_the_other(
    parts: Iterable[_Part], schema: pa.Schema, rows_of_a_group: int = ROWS_OF_A_GROUP
) -> Iterator[pa.Table]:
    """Tables of ``schema`` with all rows of the parts, each as long as a row group but the last.

    A part is a run's row of runs.parquet, whose identity columns stand in front, and a table of
    its own; columns that the table lacks are null. Of no rows there is one empty table.
    """
    # A small table weighs far more than its numbers, so a few are joined before the others come.
    few = max(rows_of_a_group // 16, 1)
    joined: Iterator[_Part] = (({}, table) for table in _pieces(parts, _joined, schema, few))
    return _pieces(joined, _whole, schema, rows_of_a_group)


def _pieces(
    parts: Iterable[_Part],
    join: Callable[[list[_Part], pa.Schema], pa.Table],
    schema: pa.Schema,
    length: int,
) -> Iterator[pa.Table]:
    """What ``join`` makes of the parts, cut so that each has ``length`` rows but the last."""
    group: list[_Part] = []
    rows, yielded = 0, False
    for row, table in parts:
        while rows + len(table) >= length:
            cut = length - rows
            whole = join([*group, (row, table.slice(0, cut))], schema)
            group, rows, yielded, table = [], 0, True, table.slice(cut)
            yield whole
            del whole  # or it would lie in memory beside the next one
        group.append((row, table))
        rows += len(table)
    if rows or not yielded:
        yield join(group, schema)


def _whole(parts: list[_Part], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables([table for _, table in parts]).combine_chunks()


def _joined(parts: list[_Part], schema: pa.Schema) -> pa.Table:
    own = pa.schema([field for field in schema if field.name not in IDENTITY_SCHEMA.names])
    tables = [table.replace_schema_metadata() for _, table in parts]
    whole = pa.concat_tables([own.empty_table(), *tables], promote_options="permissive")
    whole = whole.select(own.names).cast(own).combine_chunks()
    run_of = np.repeat(np.arange(len(parts)), [len(table) for table in tables])
    identity = [
        pa.array([row[field.name] for row, _ in parts], field.type).take(pa.array(run_of))
        for field in IDENTITY_SCHEMA
    ]
    return pa.table([*identity, *whole.columns], schema=schema)
