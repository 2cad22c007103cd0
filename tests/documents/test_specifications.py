"""The table of specifications: no open row, and whatever it names is there."""

import re
from pathlib import Path

import pytest

from fedsdg.config.reference import config_page, methods_page
from fedsdg.files.records import ROUNDS_SCHEMA
from fedsdg.methods.families import METHODS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/maintainers/specifications.md").read_text()
ROWS = re.findall(r"^\| (?!asked for|---)(.+?) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
NAMES = {
    *re.findall(r"`([^`]+)`", config_page() + methods_page()),
    *METHODS,
    *ROUNDS_SCHEMA.names,
    *(file.stem for file in (ROOT / "config").rglob("*.yaml")),
    *("rounds.parquet", "clients.parquet"),
}


def test_every_specification_has_rows_and_none_is_open():
    assert re.findall(r"^## (00\d)", PAGE, re.MULTILINE) == ["000", "001", "002", "003", "004"]
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    assert len(ROWS) == len(lines) - 2 * 5 > 30


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:40] for row in ROWS])
def test_what_a_row_names_is_there(row):
    _, here, shown = row
    assert {*re.findall(r"`([^`]+)`", here)} - NAMES == set()
    assert "def test_" in (ROOT / "tests" / shown).read_text()


def test_every_method_is_asked_for_or_a_variant_or_a_rival():
    """What the specifications do not ask for are rivals of later papers, ceilings and variants."""
    named = {name for _, here, _ in ROWS for name in re.findall(r"`([^`]+)`", here)}
    rivals = {"fine-tune", "trimmed-mean", "fedrep", "ditto", "fedper", "ffa-lora", "fedsa-lora"}
    rivals |= {"rolora", "apfl", "feddpa", "fed-rod", "fedbabu", "centralised", "local-only"}
    ours = ("fedsdg+", "fedsdg-official", "fedsdg-heldout", "gated-head")
    variants = {name for name in METHODS if name.startswith(ours)}
    assert set(METHODS) - named == rivals | variants
