"""Every block of code in the README and in docs/ is one that is run, or says why it is not.

tests/packaging/test_documents.py runs them from the wheel.
"""

import json
import tomllib

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.documents.pages import (
    CODE,
    ROOT,
    blocks,
    follow_pages,
    pages,
    run_shell,
    small_config,
)

BLOCKS = {page: found for page in pages() if (found := blocks(page))}
SCHEMA = json.loads((ROOT / "workflow/schemas/config.schema.json").read_text())


def laid_over(below, above):
    both = {key: value for key, value in below.items() if key not in above}
    for key, value in above.items():
        nested = isinstance(value, dict) and isinstance(below.get(key), dict)
        both[key] = laid_over(below[key], value) if nested else value
    return both


def require_readable(block):
    """What is no program is read, and a config is one."""
    if block.language == "yaml":
        base = yaml.safe_load(small_config("config"))
        config = laid_over(base, yaml.safe_load(block.text))
        faults = [error.message for error in Draft202012Validator(SCHEMA).iter_errors(config)]
        assert not faults, f"{block}: {faults[0]}"
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


def test_a_comment_that_no_test_knows_is_refused():
    with pytest.raises(ValueError, match="block 1: 'skip it' says nothing"):
        blocks("x.md", "<!-- skip it -->\n```sh\nfedsdg methods\n```\n")


def test_blocks_and_what_is_said_of_them_are_found():
    text = "<!-- not run: needs a GPU -->\n```sh\na\n```\n\n```\ntree\n```\n```python\nb\n```\n"
    assert [(one.number, one.language, one.kind, one.value) for one in blocks("x.md", text)] == [
        (1, "sh", "not run", "needs a GPU"),
        (3, "python", "", ""),
    ]
    whole = blocks("x.md", f"<!-- blocks run by: tests/x.py -->\n\n{text}")
    assert [one.kind for one in whole] == ["not run", "run by"]


@pytest.mark.parametrize("line", ["make smoke", "rm -rf /", "snakemake --cores 2"])
def test_no_other_command_is_run(line):
    with pytest.raises(AssertionError, match="say why with `not run`"):
        run_shell(line)


def test_a_command_that_fails_is_a_fault_of_its_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    wrong, right = tmp_path / "wrong.md", tmp_path / "right.md"
    wrong.write_text("```sh\nfedsdg run --method nothing --skew iid\n```\n")
    right.write_text("```python\na = 1\n```\n```python\nprint(a + 1)\n```\n")
    assert follow_pages([str(wrong), str(right)]) == 1
    _, first, second = capsys.readouterr().out.split("PAGE ")
    assert "FAULT" in first and "ended with 2" in first
    assert second.splitlines()[1:] == ["2"], "a block finds what those above it have left"
