"""Files of records: their columns, and the format that they say they are of."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsdg.federation.conditions.attack import Attackers
from fedsdg.files.records import (
    CLIENTS_SCHEMA,
    FORMAT,
    TIMINGS_SCHEMA,
    more,
    read_parquet,
    rounded,
    write_parquet,
    write_tables,
)

LARGEST = float(np.finfo(np.float32).max)
ROW = {"round": 1, "train_seconds": 0.5, "aggregate_seconds": 0.25, "evaluate_seconds": None}


def test_what_is_written_is_read_and_says_its_format(tmp_path):
    file = tmp_path / "seed~0" / "timings.parquet"
    file.parent.mkdir()
    write_parquet(file, [ROW], TIMINGS_SCHEMA)
    assert read_parquet(file).to_pylist() == [ROW]
    assert read_parquet(file, ["round"]).column_names == ["round"]
    assert pq.read_schema(file).metadata[b"fedsdg.format"] == str(FORMAT).encode()


def test_a_declared_column_is_there_where_it_says_something(tmp_path):
    file, row = tmp_path / "clients.parquet", {"round": 1, "client": 0}
    columns = more("clients", Attackers.columns)
    rows = [row | {"attacker": True, "gates": None}, row | {"attacker": False}]
    write_parquet(file, rows, CLIENTS_SCHEMA, columns)
    table = read_parquet(file)
    assert table.column_names == [*CLIENTS_SCHEMA.names, "attacker"]
    assert table["attacker"].to_pylist() == [True, False]


def test_single_precision_is_rounded_to_sixteen_bits_and_all_else_kept():
    floats = [1 / 3, -1e-30, 65535.0, 65537.0, 0.0, LARGEST, float("inf"), None]
    table = pa.table({"a": pa.array(floats, pa.float32()), "b": pa.array(floats)})
    found = rounded(table)
    assert found.schema == table.schema and found["b"] == table["b"]
    assert found["a"].to_pylist()[2:] == [65535.0, 65536.0, 0.0, LARGEST, float("inf"), None]
    assert found["a"][0].as_py() == round(2**17 / 3) / 2**17 != table["a"][0].as_py()
    assert found["a"][1].as_py() == pytest.approx(-1e-30, rel=2**-16)


@pytest.mark.parametrize("first", [0, 1])
def test_numbers_in_lists_are_rounded_alike(first):
    """Also those of a table that is a slice of another."""
    lists = [[0.5], [1 / 3, 0.25, None], None, [], [65537.0]]
    table = pa.table({"gates": pa.array(lists, pa.list_(pa.float32()))}).slice(first)
    found = rounded(table)
    assert found.schema == table.schema
    third = round(2**17 / 3) / 2**17
    assert found["gates"].to_pylist() == [[0.5], [third, 0.25, None], None, [], [65536.0]][first:]


def test_numbers_are_split_into_bytes_also_in_lists_that_were_read(tmp_path):
    """A list that was read calls its elements otherwise than one that was made here."""
    row = {"round": 1, "client": 0, "train_loss": 0.3, "gates": [0.1, 0.2]}
    write_parquet(tmp_path / "first.parquet", [row], CLIENTS_SCHEMA)
    table = read_parquet(tmp_path / "first.parquet")
    write_tables(tmp_path / "second.parquet", [table], table.schema)
    for name in ("first", "second"):
        group = pq.ParquetFile(tmp_path / f"{name}.parquet").metadata.row_group(0)
        columns = [group.column(place) for place in range(group.num_columns)]
        split = {c.path_in_schema for c in columns if "BYTE_STREAM_SPLIT" in c.encodings}
        assert {"train_loss", "gates.list.element"} <= split
        assert "round" not in split


@pytest.mark.parametrize("said", [None, "1", str(FORMAT + 1), "new"])
def test_records_of_another_version_are_refused_by_name(tmp_path, said):
    """Those from before formats were said are of the first."""
    table = pa.Table.from_pylist([ROW], schema=TIMINGS_SCHEMA)
    table = table.replace_schema_metadata({} if said is None else {"fedsdg.format": said})
    pq.write_table(table, tmp_path / "other.parquet")
    with pytest.raises(
        ValueError, match=rf"other\.parquet has records of format {said or 1}, .*anew"
    ):
        read_parquet(tmp_path / "other.parquet")
