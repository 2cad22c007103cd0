"""The wheel alone: what it holds, and what it does in an empty folder without the repository."""

import json
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from fedsdg import __version__
from fedsdg.files.places import ARENAS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
INSIDE = "fedsdg/_shipped/"


def test_index_and_installer_accept_both(built):
    check = [sys.executable, "-m", "twine", "check", "--strict", str(built.sdist), str(built.wheel)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.count("PASSED") == 2, done.stdout


def test_the_wheel_holds_what_newcomers_need_and_little_else(built):
    files = built.files()
    records = sum(len(content) for name, content in files.items() if name.endswith(".parquet"))
    assert built.wheel.stat().st_size - records < 4e6
    brought = {name.removeprefix(INSIDE) for name in files if name.startswith(INSIDE)}
    for name in brought - {"COMMIT"}:
        assert files[INSIDE + name] == (ROOT / name).read_bytes(), name
    patterns = ["config/**/*.yaml", "profiles/*/config.yaml", "results/reference/backbones/*"]
    for arena in ARENAS:
        names = ("*.parquet", "*.json", "partitions/**/*.parquet", "backbones/*")
        patterns += [f"results/reference/{arena}/{name}" for name in names]
    needed = {file for pattern in patterns for file in ROOT.glob(pattern)}
    assert {str(file.relative_to(ROOT)) for file in needed} | {"workflow/Snakefile"} <= brought
    assert not [name for name in files if name.endswith((".svg", ".tex", ".csv", ".pyc"))]
    modules = {file.relative_to(ROOT).as_posix() for file in (ROOT / "fedsdg").rglob("*.py")}
    assert modules == {name for name in files if name.endswith(".py")}


def test_nothing_in_it_names_a_place_of_the_machine_that_built_it(built):
    places = [str(place).encode() for place in (ROOT, built.sources, sys.prefix)]
    for name, content in built.files().items():
        assert not [place for place in places if place in content], name


def test_both_say_of_which_commit_they_are(built):
    assert built.files()[f"{INSIDE}COMMIT"].decode().strip() == built.commit
    with tarfile.open(built.sdist) as packed:
        names = packed.getnames()
        (commit,) = (name for name in names if name.count("/") == 1 and name.endswith("/COMMIT"))
        assert packed.extractfile(commit).read().decode().strip() == built.commit
    tops = {"/".join(name.split("/")[1:2]) for name in names}
    assert {"CITATION.cff", "LICENSE", "README.md", "pyproject.toml", "setup.py"} <= tops
    assert not tops & {"tests", "docs", "benchmarks", "build"}


def test_it_knows_methods_configs_and_records_in_an_empty_folder(installed, empty):
    (empty / "mine.yaml").write_text("methods: [{type: fedprox, name: mine}]\n")
    version, table, needs, wrong, compared, arenas = installed.commands(
        "--version",
        "methods",
        "check --config needs",
        "check --config config/cros-needs.yaml",
        "compare mine.yaml --seeds 99",
        "arenas --json",
        cwd=empty,
    )
    assert version.stdout == f"fedsdg {__version__}\n"
    assert "scaffold" in table.stdout and "fedsdg" in table.stdout
    methods = yaml.safe_load((ROOT / "config/needs.yaml").read_text())["methods"]
    assert needs.returncode == 0 and f"needs: {len(methods)} methods" in needs.stdout
    assert wrong.returncode == 2 and wrong.stderr.endswith("; did you mean 'needs'?\n")
    assert compared.returncode == 2 and "99" in compared.stderr
    assert {one["name"] for one in json.loads(arenas.stdout)} == {*ARENAS}
    assert [file.name for file in empty.iterdir()] == ["mine.yaml"]


def test_a_small_experiment_goes_through_every_stage(installed, empty):
    """Its last lines are two accuracies and three paths; again there is only the page to make."""
    small = {"letters-small": {"images": 400, "held_out": 100, "epochs": 1}}
    changes = {"backbones": small, "federation": {"rounds": 2, "evaluate_every": 1}}
    (empty / "small.yaml").write_text(yaml.safe_dump(changes))
    words = ("reproduce", "--config", "smoke", "small.yaml", "--cores", "2")
    done = installed(*words, cwd=empty)
    assert done.returncode == 0, done.stderr
    *_, one, two, tables, figures, page = done.stdout.splitlines()
    assert re.search(r"fedsdg +[\d.]+$", one) and re.search(r"fedavg +[\d.]+$", two)
    assert (empty / tables.split()[-1] / "main.md").is_file()
    assert (empty / figures.split()[-1] / "partition.svg").is_file()
    shown = (empty / page.split()[-1]).read_bytes()
    assert len(done.stdout.splitlines()) < 40
    (empty / page.split()[-1]).write_text("the page of another command")
    again = installed(*words, cwd=empty)
    assert again.returncode == 0 and "Train all runs" not in again.stderr + again.stdout
    assert (empty / page.split()[-1]).read_bytes() == shown


def test_a_wheel_without_its_data_says_so(own_installation, empty):
    shutil.rmtree(own_installation.package / "_shipped")
    for done in own_installation.commands("check", "reproduce", cwd=empty):
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert "an installed package brings less than the repository" in done.stderr
        assert "install it again" in done.stderr
    assert not list(empty.iterdir())
