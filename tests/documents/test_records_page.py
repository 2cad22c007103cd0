"""docs/records.md explains every column of the records, and none that they lack."""

import pyarrow as pa
import pytest

from fedsdg.experiment import record_page
from fedsdg.files import records
from fedsdg.files.declarations import declarations

SCHEMAS = (
    records.ROUNDS_SCHEMA,
    records.CLIENTS_SCHEMA,
    records.TIMINGS_SCHEMA,
)


def test_every_column_has_its_line_with_its_type():
    page = record_page.record_page(declarations()["columns"])
    assert "| `round` | int32 | round, from 1 |" in page
    assert "| `gates` | list of float64 |" in page
    names = [name for schema in SCHEMAS for name in schema.names]
    assert page.count("\n| `") >= len(names)
    names += [name for table in ("rounds", "clients") for name in records.more(table).names]
    assert all(f"| `{name}` |" in page for name in names)


def test_a_column_that_nobody_explains_stops_the_page(monkeypatch):
    monkeypatch.setattr(records.Seconds, "new_seconds", pa.float64(), raising=False)
    with pytest.raises(KeyError, match="new_seconds"):
        record_page.record_page(declarations()["columns"])
