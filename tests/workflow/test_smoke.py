"""The smallest real experiment through every stage: it works, and repeats to the byte."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

pytestmark = pytest.mark.slow

# A backbone in seconds, and two rounds: what is learned matters to nobody here.
SMALL = """
backbones: {letters-small: {images: 400, held_out: 100, epochs: 1}}
federation: {rounds: 2, evaluate_every: 1}
"""
# The workflow starts a process for each page, the command alone one for all: it makes every page.
PAGES = "tables: [main, seconds]\nfigures: [convergence, partition]\n"
SMOKE = ("--configfile", "config/smoke.yaml", "small.yaml", "pages.yaml")
# Times and hosts are kept apart from results: these alone may differ.
TIMED = ("provenance.json", "timings.parquet", "SHA256SUMS")
TIMED += ("seconds.csv", "seconds.md", "seconds.tex")


@pytest.fixture(scope="module")
def two_cores(check_out, tmp_path_factory):
    """A checkout in which the smoke experiment was run on two cores, with its own sources behind
    the command `fedsdg`."""
    folder = tmp_path_factory.mktemp("two-cores")
    project = check_out(
        folder / "project",
        f'#!/bin/sh\nPYTHONPATH="{folder}/project" exec "{sys.executable}" -m fedsdg "$@"\n',
    )
    (project.folder / "small.yaml").write_text(SMALL)
    (project.folder / "pages.yaml").write_text(PAGES)
    done = project.snakemake("--cores", "2", *SMOKE)
    assert done.returncode == 0, done.stdout
    return project


def made(project) -> dict[str, bytes | list[str]]:
    """Path -> bytes of everything that the experiment made; of what holds times, what it holds.

    Snakemake alone writes logs and benchmarks of its jobs.
    """
    found: dict[str, bytes | list[str]] = {}
    for file in sorted((project.folder / "results").rglob("*")):
        name = file.relative_to(project.folder)
        if file.is_file() and name.parts[1] not in ("logs", "benchmarks", "report.html"):
            found[str(name)] = held(file) if file.name in TIMED else file.read_bytes()
    return found


def held(file: Path) -> list[str]:
    """The names of what a file with times holds, and how many rows."""
    if file.suffix == ".json":
        return sorted(json.loads(file.read_text()))
    if file.suffix == ".parquet":
        table = pq.read_table(file, partitioning=None)
        return [*table.column_names, str(len(table))]
    if file.name == "SHA256SUMS":
        return [line.split()[-1] for line in file.read_text().splitlines()]
    # Digits and the width of what is aligned with spaces depend on the times.
    return [re.sub("[-0-9. ]+", " ", line) for line in file.read_text().splitlines()]


def test_every_stage_leaves_its_files(two_cores):
    files = set(made(two_cores))
    cell = "results/runs/smoke/digits/clients~20/dirichlet~0.3"
    for method in ("fedsdg", "fedavg"):
        record = json.loads((two_cores.folder / cell / method / "seed~0/result.json").read_text())
        assert record["status"] == "ok"
        assert record["rounds"] == 2
        assert 0 < record["last"]["personal_accuracy"] <= 1
        assert f"{cell}/{method}/seed~0/rounds.parquet" in files
        assert f"{cell}/{method}/seed~0/clients.parquet" in files
    for suffix in ("csv", "md", "tex"):
        assert f"results/tables/smoke/main.{suffix}" in files
    for suffix in ("pdf", "svg", "png", "json"):
        assert f"results/figures/smoke/convergence.{suffix}" in files
    assert "results/claims/smoke.md" in files
    assert "results/summary/smoke/verified.txt" in files
    names = {Path(name).name for name in files}
    assert not [name for name in names if name.startswith(".") or name.endswith((".tmp", ".part"))]


def test_a_second_run_has_nothing_to_do(two_cores):
    assert two_cores.planned(*SMOKE) == {}


def test_one_process_alone_with_little_installed_makes_the_same_bytes(
    two_cores, check_out, tmp_path
):
    """`fedsdg run --grid`, one run after the other, in processes that find none of what a GPU's
    image often lacks; and every page of the default config, which this one leaves as it is."""
    project = check_out(tmp_path / "project", "").folder
    # numba may be absent too, but then attention is computed by torch, and rounds otherwise.
    absent = ("snakemake", "datasets", "peft", "jsonschema", "pulp", "grimp")
    for name in absent:
        # Read at the start of every process of this Python, before anything is imported.
        with (project / "sitecustomize.py").open("a") as file:
            file.write(f"import sys\nsys.modules[{name!r}] = None\n")
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FEDSDG_")}
    (project / "small.yaml").write_text(SMALL)
    command = ["run", "--grid", "config/smoke.yaml", "small.yaml", "--jobs", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "fedsdg", *command],
        cwd=project,
        env={**kept, "PYTHONPATH": str(project)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    first, second = made(two_cores), made(replace(two_cores, folder=project))
    config = yaml.safe_load((project / "config/config.yaml").read_text())
    chosen, more = yaml.safe_load(PAGES), set()
    for kind, suffixes in (("tables", ("csv", "md", "tex")),
                           ("figures", ("pdf", "svg", "png", "json"))):  # fmt: skip
        names = set(config[kind]) - set(chosen[kind])
        more |= {f"results/{kind}/smoke/{name}.{suffix}" for name in names for suffix in suffixes}
    assert second.keys() - first.keys() == more and first.keys() <= second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    asked = [sys.executable, "-c", f"import sys; print([sys.modules[n] for n in {absent}])"]
    blocked = subprocess.run(
        asked, env={**kept, "PYTHONPATH": str(project)}, capture_output=True, text=True, check=True
    )
    assert blocked.stdout == f"{[None] * len(absent)}\n", "it was there all along"


def test_report_shows_figures_and_tables(two_cores):
    done = two_cores.snakemake("--report", "results/report.html", *SMOKE)
    assert done.returncode == 0, done.stdout
    page = (two_cores.folder / "results/report.html").read_text()
    for part in ("convergence.svg", "partition.svg", "main.csv", "Figures", "Tables", "Claims"):
        assert part in page


def test_a_failed_run_is_a_row_and_the_remedy_in_its_message_works(two_cores, tmp_path):
    """A rate that overflows: tables and figures stand, the last rule fails and says what to do."""
    broken = two_cores.copy(tmp_path / "broken")
    (broken.folder / "broken.yaml").write_text(
        "experiment: broken\n"
        "methods: [fedsdg, {type: fedavg, optimiser: sgd, eta_g: 1.0e+38}]\n"
        "training: {clip_norm: 1.0e+30, kernel: torch}\n"
    )
    config = (*SMOKE, "broken.yaml")
    done = broken.snakemake("--cores", "1", *config)
    assert done.returncode != 0
    assert "1 run(s) failed" in done.stdout and "not finite" in done.stdout
    cell = broken.folder / "results/runs/broken/digits/clients~20/dirichlet~0.3/fedavg/seed~0"
    assert json.loads((cell / "result.json").read_text())["status"] == "failed"
    for file in ("results/tables/broken/main.md", "results/figures/broken/convergence.png"):
        assert (broken.folder / file).is_file()
    assert not (broken.folder / "results/summary/broken/verified.txt").exists()
    assert "--forcerun summarise_runs" in done.stdout
    for file in cell.iterdir():
        file.unlink()
    plan = broken.planned(*config, "--forcerun", "summarise_runs")
    assert plan["train_grid"] == 1, "it is trained again"
