"""What comes with the package is found wherever the package lies, or missed in one sentence."""

import re

import pytest

from fedsdg.files.places import INSIDE, shipped


@pytest.fixture
def package(tmp_path):
    """An empty package in an empty folder, as an installer would leave it without any data."""
    folder = tmp_path / "site/fedsdg"
    folder.mkdir(parents=True)
    return folder


def filled(file):
    file.parent.mkdir(parents=True)
    file.touch()
    return file


def test_here_it_is_the_file_of_the_checkout():
    config = shipped("config/config.yaml")
    assert config.is_file() and (config.parents[1] / "pyproject.toml").is_file()
    assert {"runs.parquet", "rounds.parquet", "clients.parquet"} <= {
        file.name for file in shipped("results/reference/needs").iterdir()
    }


def test_in_a_checkout_and_in_sources_that_were_copied_it_lies_beside_the_package(package):
    file = filled(package.parent / "config/needs.yaml")
    assert shipped("config/needs.yaml", package) == file
    (package.parent / "pyproject.toml").touch()
    assert shipped("config/needs.yaml", package) == file


def test_in_an_installed_package_only_its_own_copies_count(package):
    filled(package.parent / "config/needs.yaml")  # Of somebody else among the installed.
    own = filled(package / INSIDE / "config/label-skew.yaml")
    assert shipped("config/label-skew.yaml", package) == own
    assert shipped("config", package).is_dir()
    with pytest.raises(FileNotFoundError, match="brings less than the repository"):
        shipped("config/needs.yaml", package)


@pytest.mark.parametrize(
    ("made", "remedy"),
    [
        ("fedsdg/x", "install it again"),
        ("pyproject.toml", "git status"),
        ("fedsdg/_shipped/x", "clone"),
    ],
)
def test_what_is_missing_is_named_with_its_place_and_the_remedy(package, made, remedy):
    file = package.parent / made
    file.parent.mkdir(exist_ok=True)
    file.touch()
    with pytest.raises(FileNotFoundError) as said:
        shipped("results/reference/needs", package)
    text = str(said.value)
    assert "results/reference/needs" in text and str(package.parent) in text and remedy in text
    assert "\n" not in text and not re.search(r"[.] [A-Z]", text)
