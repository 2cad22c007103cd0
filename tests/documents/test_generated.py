"""The pages that are made from the parts are what the parts say."""

from pathlib import Path

import pytest

from fedsdg.config.reference import config_page, methods_page
from fedsdg.files import records

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("name", "make"), [("config", config_page), ("methods", methods_page)])
def test_a_page_is_what_the_parts_say(name, make):
    assert (DOCS / f"{name}.md").read_text(encoding="utf-8") == make(), "give `make docs`"


def test_the_page_of_records_names_every_column():
    page = (DOCS / "records.md").read_text(encoding="utf-8")
    schemas = (records.ROUNDS_SCHEMA, records.CLIENTS_SCHEMA)
    assert [name for schema in schemas for name in schema.names if f"`{name}`" not in page] == []
