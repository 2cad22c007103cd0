"""What a result says of the checkout that made it."""

import subprocess

import pytest

from fedsdg import files


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A clean checkout of a package, with a record and a figure."""
    for name in ("fedsdg/code.py", "results/reference/needs/runs.csv", "paper_figures/a.csv"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("committed\n")
    author = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    for command in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "all"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    monkeypatch.setattr(files, "PACKAGE", tmp_path / "fedsdg")
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "dirty"),
    [
        (None, False),
        ("results/reference/needs/runs.csv", False),
        ("paper_figures/a.csv", False),
        ("fedsdg/code.py", True),
    ],
)
def test_a_checkout_has_changes_if_more_than_what_is_made_has_changed(checkout, changed, dirty):
    if changed:
        (checkout / changed).write_text("changed\n")
    assert files.provenance()["dirty"] is dirty
