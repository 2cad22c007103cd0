"""The table of specifications: no open row, and whatever it names is there."""

import json
import re
from pathlib import Path

import pytest
import yaml

from fedsdg.files.records import ROUNDS_SCHEMA
from fedsdg.methods.declared import choices, methods
from tests.workflow.test_config_schema import SCHEMA, keys_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/specifications.md").read_text()
ROWS = re.findall(r"^\| (?!asked for|---)(.+?) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)


def known_names():
    """Methods with their parameters, keys of the config, rows of tables, experiments, records."""
    tables = [methods(), *map(choices, ("optimisers", "losses", "attacks"))]
    found = {name for table in tables for name in table}
    for row in (row for table in tables for row in table.values()):
        found |= {str(word) for one in row.parameters.values() for word in one.choices or ()}
    found |= keys_of(json.loads(SCHEMA.read_text()))
    found |= {file.stem for file in (ROOT / "config").rglob("*.yaml")}
    return found | {"rounds.parquet", "clients.parquet"} | set(ROUNDS_SCHEMA.names)


def test_every_specification_has_rows_and_none_is_open():
    assert re.findall(r"^## (00\d)", PAGE, re.MULTILINE) == ["000", "001", "002", "003", "004"]
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    assert len(ROWS) == len(lines) - 2 * 5 > 30
    for asked, here, shown in ROWS:
        assert asked and re.search(r"`[^`]+`", here), asked
        assert shown.startswith("tests/"), asked


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:40] for row in ROWS])
def test_what_a_row_names_is_there(row):
    _, here, shown = row
    assert set(re.findall(r"`([^`]+)`", here)) <= known_names()
    assert "def test_" in (ROOT / shown).read_text()


def test_every_method_of_the_table_is_asked_for_or_a_variant_or_a_rival():
    """What the specifications do not ask for are rivals of later papers, ceilings and variants."""
    named = {name for _, here, _ in ROWS for name in re.findall(r"`([^`]+)`", here)}
    rivals = {"fine-tune", "trimmed-mean", "fedrep", "ditto", "fedper", "ffa-lora", "fedsa-lora"}
    rivals |= {"rolora", "apfl", "feddpa", "fed-rod", "fedbabu", "centralised", "local-only"}
    ours = ("fedsdg+", "fedsdg-official", "fedsdg-heldout", "gated-head")
    variants = {name for name in methods() if name.startswith(ours)}
    assert set(methods()) - named == rivals | variants


def test_new_corners_are_run_in_small():
    """Each in a config that `make reproduce` computes."""
    entries = yaml.safe_load((ROOT / "config/every-method.yaml").read_text())["methods"]
    given = {key for entry in entries if isinstance(entry, dict) for key in entry}
    assert {"weights", "optimiser", "loss", "server_rate", "m", "partials", "nearness"} <= given
    assert {"gamma"} <= given
    scenarios = yaml.safe_load((ROOT / "config/every-condition.yaml").read_text())["scenarios"]
    conditions = [one.get("conditions", {}) for one in scenarios.values()]
    assert any("quantisation" in one for one in conditions)
