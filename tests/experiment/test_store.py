"""Where finished runs are kept: under all that their numbers depend on."""

import dataclasses
from importlib import metadata
from pathlib import Path

import pytest

import fedsdg
from fedsdg.cli import main
from fedsdg.experiment import store
from fedsdg.experiment.store import Address

CONFIG = Path(__file__).parents[2] / "config/config.yaml"
ONE = Address("config", "partition", "backbone", "sources")


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Address)])
def test_whatever_a_run_depends_on_is_in_its_address(name):
    assert dataclasses.replace(ONE, **{name: "another"}).key != ONE.key


@pytest.mark.parametrize("library", store.LIBRARIES)
def test_so_are_the_versions_of_the_libraries(monkeypatch, library):
    before = ONE.key
    there = {**store.libraries(), library: "0.0.1"}
    monkeypatch.setattr(store, "libraries", lambda: there)
    assert ONE.key != before


def test_a_library_that_is_not_there_has_no_version(monkeypatch):
    def version(name):
        if name == "numba":
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(store.metadata, "version", version)
    assert store.libraries.__wrapped__() == dict.fromkeys(("torch", "numpy", "timm"), "1.0")


@pytest.mark.parametrize("below", ["", "/deeper"])
@pytest.mark.parametrize(
    "command",
    [
        ["run", "--method", "fedavg", "--skew", "iid"],
        ["run", "--grid", "smoke"],
        ["search", "--config", "cross-needs"],
        ["compare", "mine.yaml"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_store_that_is_a_file_is_one_sentence_and_no_record(
    tmp_path, monkeypatch, capsys, below, command
):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("methods: [{type: fedavg, name: mine}]\n")
    Path("file").write_text("")
    monkeypatch.setenv("FEDSDG_STORE", f"{tmp_path}/file{below}")
    assert main(command) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert f"because {tmp_path}/file is a file; name a folder in the environment" in sentence
    assert {file.name for file in tmp_path.iterdir()} == {"mine.yaml", "file"}
    with pytest.raises(NotADirectoryError, match=r"cannot be .*/file, because .* name a folder$"):
        fedsdg.run("fedavg", skew="iid", store=tmp_path / "file")
