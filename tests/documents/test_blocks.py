"""Every block of code in the README and in docs/ is run as it stands, or says why it is not.

All pages are followed in one folder with a small default config, so that what one page has computed
the next finds. tests/packaging/test_documents.py follows some from the wheel in empty folders.
"""

import json
import re
import tomllib

import nbclient
import nbformat
import pytest
import torch
import yaml
from jsonschema import Draft202012Validator
from safetensors.torch import save_file

from tests.documents.pages import (
    CODE,
    DOCS,
    ROOT,
    blocks,
    follow,
    pages,
    run_python,
    run_shell,
    small_config,
)
from tests.own_images import write_photographs

BLOCKS = {page: blocks(page) for page in pages()}
SCHEMA = json.loads((ROOT / "workflow/schemas/config.schema.json").read_text())


def laid_over(below, above):
    both = {key: value for key, value in below.items() if key not in above}
    for key, value in above.items():
        nested = isinstance(value, dict) and isinstance(below.get(key), dict)
        both[key] = laid_over(below[key], value) if nested else value
    return both


def safetensors(folder):
    """What docs/aggregate.md has at hand: files of a server and of clients, controls, counts."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(40, generator=generator)
    save_file({"w": theta}, folder / "g.safetensors")
    for name in ("clients", "controls"):
        (folder / name).mkdir()
        for k in range(3):
            moved = theta + 0.1 * torch.randn(40, generator=generator) + 0.05
            facts = {"num_samples": str(10 + k)}
            save_file({"w": moved}, folder / name / f"client-{k}.safetensors", metadata=facts)
    (folder / "all.json").write_text("[10, 11, 12]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where all pages are followed: the record, and files that pages bring; no config but this.

    The default config is a small one, and a file `smoke` takes the place of the package's.
    """
    place = tmp_path_factory.mktemp("pages")
    default = tmp_path_factory.mktemp("default") / "config.yaml"
    default.write_text(small_config("config"), encoding="utf-8")
    (place / "smoke").write_text(small_config("smoke"), encoding="utf-8")
    (place / "results").mkdir()
    (place / "results/reference").symlink_to(ROOT / "results/reference")
    safetensors(place)
    write_photographs(place / "photos/pets")
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("FEDSDG_STORE", "FEDSDG_DATA"):
            patch.delenv(variable, raising=False)
        patch.setenv("FEDSDG_CONFIG", str(default))
        patch.setenv("MPLBACKEND", "agg")
        yield place


@pytest.mark.parametrize("page", [page for page, found in BLOCKS.items() if found])
def test_what_is_said_of_blocks_holds(page):
    for block in BLOCKS[page]:
        assert block.language in CODE, f"{block}: no test knows how to run {block.language}"
        if block.kind == "not run":
            assert len(block.value.split()) > 2, f"{block}: {block.value!r} is no reason"
        if block.kind == "run by":
            test = ROOT / block.value
            assert test.is_file(), f"{block}: there is no {block.value}"
            assert page in test.read_text(), f"{block.value} does not name {page}"


def done(block, names, folder):
    """Do with a block what is to be done with it."""
    if block.kind in ("not run", "run by"):
        return
    if block.language == "yaml":
        base = yaml.safe_load(small_config("config"))
        config = laid_over(base, yaml.safe_load(block.text))
        faults = [error.message for error in Draft202012Validator(SCHEMA).iter_errors(config)]
        assert not faults, f"{block}: {faults[0]}"
    elif block.language == "json":
        json.loads(block.text)
    elif block.language == "toml":
        tomllib.loads(block.text)
    follow(block, names, folder)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page, found in BLOCKS.items() if found])
def test_every_block_runs(page, folder, monkeypatch):
    monkeypatch.chdir(folder)
    names = {"__name__": page}
    for block in BLOCKS[page]:
        done(block, names, folder)


@pytest.mark.slow
def test_the_notebook_runs(folder, monkeypatch):
    notebook = nbformat.read(DOCS / "quickstart.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell for cell in code if cell.outputs or cell.execution_count] == [], "clear outputs"
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    table, plot = code[-2].outputs, code[-1].outputs
    shown = table[-1]["data"]["text/plain"]
    assert re.search(r"fedavg +fedsdg", shown)
    assert any("image/png" in output.get("data", {}) for output in plot)


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


def test_a_command_that_fails_is_a_fault(capsys):
    with pytest.raises(AssertionError, match="ended with 2"):
        run_shell("fedsdg run --method nothing --skew iid")


def test_a_block_finds_what_those_above_it_have_left():
    names = {}
    run_python(blocks("x.md", "```python\na = 1\n```\n")[0], names)
    run_python(blocks("x.md", "```python\na += 1\n```\n")[0], names)
    assert names["a"] == 2
