"""docs/records.md explains every column of the records, and none that they lack."""

import pyarrow as pa
import pytest

from fedsdg.experiment import record_page
from fedsdg.files import meanings, records
from fedsdg.files.declarations import declarations

TABLES = (
    (records.ROUNDS_SCHEMA, meanings.ROUNDS),
    (records.CLIENTS_SCHEMA, meanings.CLIENTS),
    (records.TRACE_SCHEMA, meanings.TRACE),
    (records.TIMINGS_SCHEMA, meanings.TIMINGS),
)


@pytest.mark.parametrize("number", range(len(TABLES)))
def test_what_is_explained_are_the_columns(number):
    schema, known = TABLES[number]
    assert set(known) == set(schema.names)
    assert all(
        meaning.strip() and "|" not in meaning.replace("‖", "") for meaning in known.values()
    )


def test_every_column_has_its_line_with_its_type():
    page = record_page.record_page(declarations()["columns"])
    assert "| `round` | int32 | round, from 1 |" in page
    assert "| `gates` | list of float64 |" in page
    assert page.count("\n| `") >= sum(len(schema) for schema, _ in TABLES)
    for table in ("rounds", "clients"):
        assert all(f"| `{name}` |" in page for name in records.more(table).names)


def test_a_column_that_nobody_explains_stops_the_page(monkeypatch):
    schema = records.TIMINGS_SCHEMA.append(pa.field("new_seconds", pa.float64()))
    changed = [*record_page._TABLES[:-1], ("t", schema, meanings.TIMINGS)]
    monkeypatch.setattr(record_page, "_TABLES", changed)
    with pytest.raises(KeyError, match="new_seconds"):
        record_page.record_page(declarations()["columns"])
