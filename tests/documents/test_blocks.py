"""Every block of code in the README and in docs/ is one that is run, or says why it is not.

tests/packaging/test_documents.py runs them from the wheel.
"""

import json
import tomllib

import pytest
import yaml

from fedsdg.config.config import Config
from fedsdg.config.scenarios import overlay
from tests.documents.pages import CODE, ROOT, blocks, follow_pages, pages, small_config

BLOCKS = {page: found for page in pages() if (found := blocks(page))}


def require_readable(block):
    """What is no program is read, and a config is one; plugins are made by other blocks."""
    if block.language == "yaml":
        given = yaml.safe_load(block.text)
        if not any(key in given for key in ("plugins", "datasets", "over")):
            Config.read(overlay(yaml.safe_load(small_config("config")), given))
    elif block.language == "json":
        json.loads(block.text)
    elif block.language == "toml":
        tomllib.loads(block.text)


@pytest.mark.parametrize("page", BLOCKS)
def test_what_is_said_of_blocks_holds(page):
    for block in BLOCKS[page]:
        assert block.language in CODE, f"{block}: no test knows how to run {block.language}"
        if block.kind == "not run":
            assert len(block.value.split()) > 2, f"{block}: {block.value!r} is no reason"
        elif block.kind == "run by":
            test = ROOT / block.value
            assert test.is_file(), f"{block}: there is no {block.value}"
            assert page in test.read_text(), f"{block.value} does not name {page}"
        else:
            require_readable(block)


def test_a_command_that_fails_is_a_fault_of_its_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    wrong, right = tmp_path / "wrong.md", tmp_path / "right.md"
    wrong.write_text("```sh\nfedsdg run --method nothing --skew iid\n```\n")
    right.write_text("```python\na = 1\n```\n```python\nprint(a + 1)\n```\n")
    assert follow_pages([str(wrong), str(right)]) == 1
    _, first, second = capsys.readouterr().out.split("PAGE ")
    assert "FAULT" in first and "ended with 2" in first
    assert second.splitlines()[1:] == ["2"], "a block finds what those above it have left"
