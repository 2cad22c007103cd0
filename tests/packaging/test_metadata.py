"""What is said of the package in several places agrees."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from fedsdg import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_citation_is_whole_and_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0" and cited["type"] == "software"
    assert cited["version"] == __version__
    assert cited["license"] == PROJECT["license"]
    assert cited["authors"] == PROJECT["authors"]
    assert cited["title"].startswith("FedSDG Bench") and cited["message"]
    assert len(cited["abstract"].split()) > 20 and "federated learning" in cited["keywords"]


def test_the_version_has_its_entry_in_the_changelog():
    heads = re.findall(r"^## .*?(\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == __version__


def workflow(name):
    return yaml.safe_load((ROOT / ".github/workflows" / name).read_text())


def test_every_python_that_the_lock_is_for_is_tested_and_the_wheel_alone_is_tried():
    jobs = workflow("ci.yml")["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    told = " ".join(step.get("run", "") for step in jobs["package"]["steps"])
    assert "make package" in told and 'fedsdg" reproduce --config smoke' in told


def make(*arguments):
    """What make prints."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    told = subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return told.stdout


def test_make_help_lists_every_target_that_can_be_called():
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    listed = dict(re.findall(r"^  make (\S+) +(\S.*)$", make("help"), re.MULTILINE))
    assert set(listed) == set(phony.split()), "say after `##` what a target is for"
    assert len(listed) == 16


@pytest.mark.parametrize(
    ("goals", "command"),
    [
        (["smoke"], "fedsdg reproduce --cores all --config smoke"),
        (["reproduce", "SEEDS=2"], "fedsdg reproduce --cores all -- --config seeds=2"),
        (["reproduce", "CONFIG=views", "CORES=4"], "fedsdg reproduce --cores 4 --config views"),
        (["package"], "-m twine check --strict dist/*"),
        (["record"], "|| status=$?; \\\nsnakemake figures tables --cores all && fedsdg render"),
    ],
)
def test_a_target_is_a_command(goals, command):
    assert command in make("--dry-run", *goals)


def test_seeds_beside_a_config_are_refused():
    with pytest.raises(subprocess.CalledProcessError) as refused:
        make("--dry-run", "reproduce", "CONFIG=needs", "SEEDS=2")
    assert "SEEDS" in refused.value.stderr
