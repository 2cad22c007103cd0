"""The page of records names every column; that of config and methods: tests/config."""

from pathlib import Path

from fedsdg.files import records

PAGE = Path(__file__).parents[2] / "docs/records.md"


def test_every_column_is_explained():
    page = PAGE.read_text(encoding="utf-8")
    schemas = (records.ROUNDS_SCHEMA, records.CLIENTS_SCHEMA)
    assert [name for schema in schemas for name in schema.names if f"`{name}`" not in page] == []
