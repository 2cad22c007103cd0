"""Where finished runs are kept: under all that their numbers depend on."""

import dataclasses
from importlib import metadata

import pytest

from fedsdg.experiment import store
from fedsdg.experiment.store import Address

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
