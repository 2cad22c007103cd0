"""A copy of the workflow in a folder of its own, and Snakemake as a reader would call it."""

import functools
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.built import built, installed  # noqa: F401
from tests.copies import keep_compiled

ROOT = Path(__file__).resolve().parents[2]

# Stands in for the commands `fedsdg` and `pytest` (which measures): writes the files that the real
# ones would, at once, and notes how it was called. What is tested with it is the workflow and
# nothing else.
STAND_IN = """#!{python} -SE
import json, os, pathlib, re, sys
name = pathlib.Path(sys.argv[0]).name
command, *rest = sys.argv[1:] if name == "fedsdg" else ["measure", *sys.argv[1:]]
if command == "check":  # Before anything runs; of no rule.
    sys.exit("error: methods: krum: too few" if os.environ.get("FAILING") == command else 0)
given, key = {{"": []}}, ""
for word in rest:
    if word.startswith("--"):
        key = word[2:]
        given[key] = []
    else:
        given[key].append(word)
call = {{"command": command, "given": {{k: v for k, v in given.items() if k or v}}}}
call["config"] = pathlib.Path(os.environ["FEDSDG_CONFIG"]).read_text()
call["environment"] = {{k: v for k, v in os.environ.items() if k.startswith(("OMP_", "MALLOC_"))}}
with open("calls.jsonl", "a") as calls:
    calls.write(json.dumps(call) + "\\n")
if os.environ.get("FAILING") == command and "succeeded" in given:
    sys.exit("error: 1 run(s) failed: fedavg, seed 0")
outputs = given.get("output", [])
output = (outputs or [""])[0]
folders = []
if command == "run":  # Which runs the grid has, the config says.
    sys.path[:0] = [os.getcwd(), {site!r}]
    from fedsdg.experiment.config_files import load_config
    config, only = load_config(), set(given.get("only", []))
    runs = [run for run in config.run_folders() if only <= set(str(run).split("/"))]
    folders = [f"results/runs/{{config.experiment}}/{{run}}" for run in runs]
stem = re.sub("[.]safetensors$", "", output)
files = {{
    "partition": outputs,
    "run": [f"{{folder}}/{{record}}" for folder in folders for record in {records}],
    "pretrain": [stem + ".safetensors", stem + ".json"],
    "summarise": [output] if "succeeded" in given else [f"{{output}}/{{n}}" for n in {summary}],
    "measure": given.get("measured", []),
    "render": [],
}}
figures = given.get("figures", outputs)
for name in given[""] if command == "render" else []:
    kind, _, page = name.rpartition(":")
    tables = {{"table": [f"{{output}}/{{page}}"], "": [f"{{output}}/{{page}}"]}}.get(kind, [])
    drawn = {{"figure": [f"{{figures[0]}}/{{page}}"], "": [f"{{output}}/{{page}}"]}}.get(kind, [])
    for stems, suffixes in ((tables, "csv md tex"), (drawn, "pdf svg png csv json")):
        files["render"] += [f"{{s}}.{{suffix}}" for s in stems for suffix in suffixes.split()]
for file in map(pathlib.Path, files[command]):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(command)
"""
RECORDS = (
    "rounds.parquet",
    "clients.parquet",
    "result.json",
    "provenance.json",
    "timings.parquet",
    "SHA256SUMS",
)
SUMMARY = (
    *(f"{name}.parquet" for name in ("runs", "rounds", "clients", "timings")),
    "methods.json",
)
# Rules that only name what is wanted, and the last line of the table of jobs.
TARGETS = ("all", "runs", "tables", "figures", "performance", "total")


@dataclass
class Project:
    """A checkout: where it is, and the folder that holds its command `fedsdg`."""

    folder: Path
    commands: Path

    def snakemake(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Call Snakemake in the checkout; standard error is joined to standard output."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("FEDSDG_")}
        kept["PATH"] = f"{self.commands}{os.pathsep}{kept['PATH']}"
        return subprocess.run(
            [sys.executable, "-m", "snakemake", *arguments],
            cwd=self.folder,
            env={**kept, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=600,
            check=False,
        )

    def planned(self, *arguments: str) -> dict[str, int]:
        """Rule -> number of jobs that a run would do now; empty when there is nothing to do."""
        return jobs_of(self.snakemake("--dry-run", "--cores", "2", *arguments))

    def calls(self, command: str) -> list[dict]:
        """How the stand-in was called with this command, in order."""
        lines = (self.folder / "calls.jsonl").read_text().splitlines()
        return [call for call in map(json.loads, lines) if call["command"] == command]

    def copy(self, folder: Path) -> "Project":
        """The same checkout with everything it has made, somewhere else; times are kept."""
        return Project(Path(shutil.copytree(self.folder, folder)), self.commands)

    def edit(self, file: str) -> None:
        """Change the code of a Python file of the checkout, though not what it does."""
        with (self.folder / file).open("a") as source:
            source.write("\nassert True\n")


def jobs_of(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """Rule -> number of jobs of a run, by the table that Snakemake begins with."""
    assert done.returncode == 0, done.stdout
    table = re.search(r"Job stats:\njob +count\n-[- ]+\n(.*?)\n\n", done.stdout, re.DOTALL)
    if table is None:
        assert "Nothing to be done" in done.stdout, done.stdout
        return {}
    rows = (line.split() for line in table[1].splitlines())
    return {rule: int(count) for rule, count in rows if rule not in TARGETS}


def write_command(folder: Path, text: str) -> Path:
    """Put an executable into a new folder, for the search path, as `fedsdg` and as `pytest`."""
    folder.mkdir()
    for name in ("fedsdg", "pytest"):
        command = folder / name
        command.write_text(text)
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return folder


def copy_workflow(folder: Path, commands: Path) -> Project:
    """Copy what the workflow consists of into a new folder."""
    folder.mkdir()
    for part in ("workflow", "config", "profiles", "fedsdg", "benchmarks"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / part, folder / part, ignore=ignored)
    keep_compiled(folder / "fedsdg")
    shutil.copy(ROOT / "Snakefile", folder)
    return Project(folder, commands)


@pytest.fixture(scope="session")
def check_out() -> Callable[[Path, str], Project]:
    """Copies the workflow into a new folder; the text is that of its command `fedsdg`."""
    return lambda folder, command: copy_workflow(
        folder, write_command(folder.with_name("bin"), command)
    )


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = sysconfig.get_path("purelib")
    text = STAND_IN.format(python=sys.executable, site=site, records=RECORDS, summary=SUMMARY)
    return write_command(tmp_path_factory.mktemp("stand-in") / "bin", text)


@pytest.fixture
def project(tmp_path: Path, stand_in: Path) -> Project:
    """A fresh checkout in which nothing was made yet."""
    return copy_workflow(tmp_path / "project", stand_in)


#: With which every cell of one skew is a job; without it the small grid is one.
CELLS = ("--workflow-profile", "profiles/gpu", "--config", "training={device: cuda}")
CELLS += ("skews=[dirichlet~0.3]",)


@pytest.fixture(scope="session")
def finish(
    tmp_path_factory: pytest.TempPathFactory, stand_in: Path
) -> Callable[[tuple[str, ...]], Project]:
    """Runs the default grid by the stand-in, once for all tests with the same options."""

    @functools.cache
    def finish(options: tuple[str, ...]) -> Project:
        project = copy_workflow(tmp_path_factory.mktemp("finished") / "project", stand_in)
        done = project.snakemake("--cores", "2", *options)
        assert done.returncode == 0, done.stdout
        return project

    return finish


@pytest.fixture
def finished(finish: Callable[[tuple[str, ...]], Project], tmp_path: Path) -> Project:
    """A checkout in which the whole default grid was run, in one job."""
    return finish(()).copy(tmp_path / "project")


@pytest.fixture
def finished_cells(finish: Callable[[tuple[str, ...]], Project], tmp_path: Path) -> Project:
    """A checkout in which the cells of one skew were run, a job for each."""
    return finish(CELLS).copy(tmp_path / "project")
