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


def test_publishing_needs_a_tag_and_no_password():
    said = workflow("release.yml")
    assert said[True] == {"push": {"tags": ["v*"]}}  # YAML reads the key `on` so.
    assert said["permissions"] == {"contents": "read"}
    publish = said["jobs"]["publish"]
    assert publish["needs"] == "build" and publish["permissions"] == {"id-token": "write"}
    steps = [step for job in said["jobs"].values() for step in job["steps"]]
    assert not [step for step in steps if {"user", "password"} & set(step.get("with", {}))]
    assert steps[-1]["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text()


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
    assert {"smoke", "docs", "package", "reproduce"} < set(listed)


@pytest.mark.parametrize(
    ("goals", "begin"),
    [
        (["reproduce"], "All arenas: tables in results/tables/, "),
        (
            ["reproduce", "CONFIG=config/ablation.yaml"],
            "config/ablation.yaml: tables in results/tables/, ",
        ),
    ],
)
def test_make_reproduce_ends_with_where_the_results_are(goals, begin):
    echoed = re.findall(r'^echo "(.*)"$', make("--dry-run", *goals), re.MULTILINE)
    # A checkout without an environment says in each call of make that it installs one.
    told = [line for line in echoed if not line.startswith("Installing")]
    assert told[-1].startswith(begin) and "figures in results/figures/" in told[-1]


def test_make_smoke_is_the_command_that_ends_with_where_the_results_are():
    """tests/workflow/test_smoke.py reads its last lines."""
    *_, last = make("--dry-run", "smoke").splitlines()
    assert last.endswith("/fedsdg reproduce --cores all --config smoke")


def test_make_builds_both_and_checks_them():
    told = make("--dry-run", "package")
    assert "-m build --outdir dist ." in told and "-m twine check --strict dist/*" in told
