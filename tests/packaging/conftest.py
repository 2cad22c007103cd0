"""The wheel, and folders to try it in."""

import shutil
from pathlib import Path

import pytest

from tests.built import Installation, built, installed  # noqa: F401


@pytest.fixture
def own_installation(installed, tmp_path) -> Installation:  # noqa: F811
    """One that a test may change."""
    return Installation(Path(shutil.copytree(installed.site, tmp_path / "own/site")))


@pytest.fixture
def empty(tmp_path) -> Path:
    """A folder with nothing in it."""
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder
