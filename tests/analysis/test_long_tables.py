"""Tables of many runs one behind the other: the bytes of all rows written at once."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsdg.analysis.long_tables import one_behind_the_other, widened
from fedsdg.analysis.summary_schemas import IDENTITY_SCHEMA
from fedsdg.files.records import FORMAT, write_tables

OWN = pa.schema([("round", pa.int32()), ("gates", pa.list_(pa.float64())), ("late", pa.float64())])
SCHEMA = pa.schema([*IDENTITY_SCHEMA, *OWN])


def part(seed: int, length: int) -> tuple[dict, pa.Table]:
    row = {"experiment": "e", "dataset": "d", "clients": 2, "skew": "iid", "method": "m"}
    row |= {"seed": seed, "more": 1}
    columns = {"round": pa.array(range(length), pa.int64())}
    if seed % 2:
        columns["gates"] = pa.array([[float(i)] for i in range(length)], pa.list_(pa.float64()))
    else:
        columns["gates"] = pa.nulls(length)
    return row, pa.table(columns)


@pytest.mark.parametrize("rows", [1, 3, 7, 16, 100])
def test_groups_are_full_but_the_last_and_keep_every_row(rows) -> None:
    lengths = [4, 0, 9, 1, 2]
    parts = [part(seed, length) for seed, length in enumerate(lengths)]
    tables = list(one_behind_the_other(parts, SCHEMA, rows))
    whole = sum(lengths)
    assert [len(table) for table in tables] == [rows] * (whole // rows) + [whole % rows] * (
        whole % rows > 0
    )
    assert all(table.schema == SCHEMA for table in tables)
    found = pa.concat_tables(tables).to_pylist()
    assert [(row["seed"], row["round"]) for row in found] == [
        (seed, i) for seed, length in enumerate(lengths) for i in range(length)
    ]
    assert all((row["gates"] == [row["round"]]) if row["seed"] % 2 else row["gates"] is None
               for row in found)  # fmt: skip
    assert all(row["late"] is None and row["method"] == "m" for row in found)


@pytest.mark.parametrize("parts", [[], [part(0, 0)]])
def test_of_no_rows_there_is_one_empty_table(parts) -> None:
    (table,) = one_behind_the_other(parts, SCHEMA)
    assert len(table) == 0 and table.schema == SCHEMA


@pytest.mark.parametrize("lengths", [[5, 6], [4, 4], []])
def test_the_file_is_that_of_pyarrow_with_row_groups_of_that_size(tmp_path, lengths) -> None:
    parts = [part(seed, length) for seed, length in enumerate(lengths)]
    write_tables(tmp_path / "ours", one_behind_the_other(parts, SCHEMA, 4), SCHEMA)
    (whole,) = one_behind_the_other(parts, SCHEMA)
    whole = whole.replace_schema_metadata({"fedsdg.format": str(FORMAT)})
    pq.write_table(whole, tmp_path / "theirs", compression="zstd", row_group_size=4)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_a_column_of_some_runs_stands_behind_the_schema_once() -> None:
    others = [
        pa.schema([("round", pa.int32()), ("speed", pa.null())]),
        pa.schema([("late", pa.float64()), ("speed", pa.float64()), ("age", pa.int32())]),
        pa.schema([("speed", pa.float64())]),
    ]
    assert widened(OWN, others).names == ["round", "gates", "late", "speed", "age"]
