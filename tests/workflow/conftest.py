"""Snakemake as a reader would call it, in a folder of its own, with a stand-in for its commands."""

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Notes how it was called and writes what the real commands would: what is tested is the workflow.
STAND_IN = """#!{python} -SE
import json, os, pathlib, sys, time
program, words = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
call = {{"program": program, "words": words, "process": os.getpid()}}
call["config"] = pathlib.Path(os.environ.get("FEDSDG_CONFIG", os.devnull)).read_text()
with open("calls.jsonl", "a") as calls:
    calls.write(json.dumps(call) + "\\n")
if os.environ.get("SLOW") == words[0]:
    time.sleep(60)
if "--succeeded" in words and "FAILING" in os.environ:
    sys.exit("1 run(s) failed: fedavg, seed 0")
output = pathlib.Path(words[words.index("--output") + 1] if "--output" in words else "none")
files = [output] if "--succeeded" in words else []
if words[0] == "summarise" and not files:
    files = [output / f"{{name}}.parquet" for name in ("runs", "rounds", "clients", "timings")]
    files += [output / "methods.json"]
if words[:2] == ["render", "speed"]:
    files = [output / f"speed.{{suffix}}" for suffix in "csv md tex svg pdf png".split()]
if program == "pytest":
    files = [pathlib.Path(words[-1])]
if words[:2] == ["render", "--summary"]:
    output.mkdir(parents=True, exist_ok=True)
for file in files:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
"""
TARGETS = ("all", "runs", "tables", "figures", "total")
"""Rules that only name what is wanted, and the last line of the table of jobs."""


class Project:
    """A folder in which the workflow of this checkout runs, and its commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.folder.mkdir()
        self.commands = folder / "bin"
        self.commands.mkdir()
        for name in ("fedsdg", "pytest"):
            self.install(name, STAND_IN.format(python=sys.executable))

    def install(self, name: str, text: str) -> None:
        """Put an executable on the search path."""
        command = self.commands / name
        command.write_text(text)
        command.chmod(command.stat().st_mode | stat.S_IXUSR)

    def start(
        self, *arguments: str, profile: str = "default", **environment: str
    ) -> subprocess.Popen[str]:
        """Call Snakemake; standard error is joined to standard output."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("FEDSDG_")}
        kept["PATH"] = f"{self.commands}{os.pathsep}{kept['PATH']}"
        words = [f"--snakefile={ROOT}/workflow/Snakefile"]
        words += [f"--workflow-profile={ROOT}/profiles/{profile}"]
        return subprocess.Popen(
            [sys.executable, "-m", "snakemake", *words, *arguments],
            cwd=self.folder,
            env={**kept, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def snakemake(self, *arguments: str, **options: str) -> tuple[int, str]:
        """Call Snakemake and return its exit code and what it printed."""
        running = self.start(*arguments, **options)
        output, _ = running.communicate(timeout=300)
        return running.returncode, output

    def planned(self, *arguments: str, **options: str) -> dict[str, int]:
        """Return the number of jobs of each rule that a run would do now."""
        code, output = self.snakemake("--dry-run", "--cores=2", *arguments, **options)
        assert code == 0, output
        table = re.search(r"Job stats:\njob +count\n-[- ]+\n(.*?)\n\n", output, re.DOTALL)
        if table is None:
            assert "Nothing to be done" in output, output
            return {}
        rows = (line.split() for line in table[1].splitlines())
        return {rule: int(count) for rule, count in rows if rule not in TARGETS}

    def calls(self, word: str) -> list[dict]:
        """Return how the stand-in was called with this first word, in order."""
        calls = map(json.loads, (self.folder / "calls.jsonl").read_text().splitlines())
        return [call for call in calls if call["words"][0] == word]

    def config(self, text: str) -> tuple[str, str, str]:
        """Write a file that is laid over the smoke config, and return the options that say so."""
        (self.folder / "more.yaml").write_text(text)
        return ("--configfile", f"{ROOT}/config/smoke.yaml", "more.yaml")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A folder in which nothing was made yet."""
    return Project(tmp_path)


@pytest.fixture
def finished(project: Project) -> Callable[..., Project]:
    """Return a function that runs the workflow to its end."""

    def finish(*arguments: str, **options: str) -> Project:
        code, output = project.snakemake("--cores=2", *arguments, **options)
        assert code == 0, output
        return project

    return finish
