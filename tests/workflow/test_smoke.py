"""The smallest real experiment through every stage, by the wheel in an empty folder.

It works, repeats to the byte, and another release redoes what it changed.
"""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fedsdg import __version__
from fedsdg.files import read_json
from tests.built import Installation

from .conftest import jobs_of

pytestmark = pytest.mark.slow

# A backbone in seconds, and two rounds.
SMALL = """
backbones: {letters-small: {images: 400, held_out: 100, epochs: 1}}
federation: {rounds: 2, evaluate_every: 1}
"""
CELL = Path("results/runs/smoke/digits/clients~20/dirichlet~0.3")
# Times and hosts are kept apart from results: these alone may differ.
TIMED = ("provenance.json", "timings.parquet", "SHA256SUMS")
TIMED += ("cost.csv", "cost.md", "cost.tex")


@dataclass(frozen=True)
class Smoke:
    """The folder of the experiment, the wheel, and what the command said that made it."""

    folder: Path
    wheel: Installation
    said: str = ""

    def reproduce(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Call the workflow; standard error is put before standard output."""
        configs = ("--config", "smoke", "small.yaml")
        done = self.wheel("reproduce", *configs, *arguments, cwd=self.folder)
        return subprocess.CompletedProcess(
            done.args, done.returncode, f"{done.stderr}\n{done.stdout}"
        )

    def planned(self, *configs: str, asked: tuple[str, ...] = ()) -> dict[str, int]:
        """Rule -> number of jobs that a run would do now."""
        return jobs_of(self.reproduce(*configs, "--", "--dry-run", *asked))


@pytest.fixture(scope="module")
def smoke(built, installed, tmp_path_factory):
    """The smoke experiment, on two cores."""
    folder = tmp_path_factory.mktemp("smoke")
    wheel = Installation(Path(shutil.copytree(installed.site, folder / "own/site")))
    # Environments often lie in a repository of somebody's own, whose commit is not the package's.
    around = ["git", "-C", str(folder / "own"), "-c", "user.name=A", "-c", "user.email=a@b.org"]
    subprocess.run([*around, "init", "--quiet"], check=True)
    subprocess.run([*around, "commit", "--quiet", "--allow-empty", "-m", "other"], check=True)
    empty = folder / "empty"
    empty.mkdir()
    (empty / "small.yaml").write_text(SMALL)
    done = Smoke(empty, wheel).reproduce("--cores", "2")
    assert done.returncode == 0, done.stdout
    return Smoke(empty, wheel, done.stdout)


def made(folder: Path) -> dict[str, bytes | list[str]]:
    """Path -> bytes of everything that the experiment made; of what holds times, what it holds.

    Snakemake alone writes logs and benchmarks of its jobs.
    """
    found: dict[str, bytes | list[str]] = {}
    for file in sorted((folder / "results").rglob("*")):
        name = file.relative_to(folder)
        own = name.parts[1] in ("logs", "benchmarks", "report.html") or "snakemake" in file.name
        if file.is_file() and not own:
            found[str(name)] = held(file) if file.name in TIMED else file.read_bytes()
    return found


def held(file: Path) -> list[str]:
    """The names of what a file with times holds, and how many rows."""
    if file.suffix == ".json":
        facts = json.loads(file.read_text())  # of a run, or a list of entries of a summary
        return sorted(facts if isinstance(facts, dict) else facts[0])
    if file.suffix == ".parquet":
        table = pq.read_table(file, partitioning=None)
        return [*table.column_names, str(len(table))]
    if file.name == "SHA256SUMS":
        return [line.split()[-1] for line in file.read_text().splitlines()]
    # Digits and the width of what is aligned with spaces depend on the times.
    return [re.sub("[-0-9. ]+", " ", line) for line in file.read_text().splitlines()]


def test_every_stage_leaves_its_files_and_the_last_lines_say_where(smoke, built):
    files = set(made(smoke.folder))
    for method in ("fedsdg", "fedavg"):
        run = smoke.folder / CELL / method / "seed~0"
        record = read_json(run / "result.json")
        assert record["status"] == "ok" and record["rounds"] == 2
        assert 0 < record["last"]["personal_accuracy"] <= 1
        assert read_json(run / "provenance.json")["commit"] == built.commit
        assert {f"{CELL}/{method}/seed~0/{n}.parquet" for n in ("rounds", "clients")} <= files
    for suffix in ("csv", "md", "tex"):
        assert f"results/tables/smoke/main.{suffix}" in files
    for suffix in ("pdf", "svg", "png", "csv", "json"):
        assert f"results/figures/smoke/partition.{suffix}" in files
    assert "results/summary/smoke/verified.txt" in files
    names = {Path(name).name for name in files}
    assert not [name for name in names if name.startswith(".") or name.endswith((".tmp", ".part"))]
    assert len(smoke.said.splitlines()) < 40
    assert smoke.said.endswith(
        "a table:  results/tables/smoke/main.md\n"
        "a figure: results/figures/smoke/partition.svg\n"
        "the page: fedsdg render page --records results/summary --experiments smoke\n"
    )


def test_a_second_run_has_nothing_to_do(smoke):
    assert smoke.planned() == {}


def test_one_process_alone_with_little_installed_makes_the_same_bytes(smoke, tmp_path):
    """`fedsdg run --grid`, one run after the other, in processes that find none of what a GPU's
    image often lacks."""
    # numba may be absent too, but then attention is computed by torch, and rounds otherwise.
    absent = ("snakemake", "datasets", "peft", "jsonschema", "pulp", "grimp")
    # Read at the start of every process of this Python, before anything is imported.
    blocking = f"import sys\nsys.modules.update(dict.fromkeys({absent}))\n"
    (tmp_path / "sitecustomize.py").write_text(blocking)
    (tmp_path / "small.yaml").write_text(SMALL)
    paths = {"PYTHONPATH": f"{tmp_path}:{smoke.wheel.site}"}
    command = ["-m", "fedsdg", "run", "--grid", "smoke", "small.yaml", "--jobs", "1"]
    done = smoke.wheel.python(*command, cwd=tmp_path, **paths)
    assert done.returncode == 0, done.stderr
    first, second = made(smoke.folder), made(tmp_path)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    asked = f"import sys; print({{*map(sys.modules.get, {absent})}})"
    assert smoke.wheel.python("-c", asked, cwd=tmp_path, **paths).stdout == "{None}\n"


def test_report_shows_figures_and_tables(smoke):
    done = smoke.reproduce("--", "--report", "results/report.html")
    assert done.returncode == 0, done.stdout
    page = (smoke.folder / "results/report.html").read_text()
    for part in ("partition.svg", "main.csv", "Figures", "Tables"):
        assert part in page


def test_a_failed_run_is_a_row_and_the_remedy_in_its_message_works(smoke, tmp_path):
    """A rate that overflows: tables and figures stand, the last rule fails and says what to do."""
    broken = Smoke(Path(shutil.copytree(smoke.folder, tmp_path / "broken")), smoke.wheel)
    (broken.folder / "broken.yaml").write_text(
        "experiment: broken\n"
        "methods: [fedsdg, {type: fedavg, optimiser: sgd, eta_g: 1.0e+38}]\n"
        "training: {clip_norm: 1.0e+30, kernel: torch}\n"
    )
    done = broken.reproduce("broken.yaml", "--cores", "1")
    assert done.returncode != 0
    assert "1 run(s) failed" in done.stdout and "not finite" in done.stdout
    cell = broken.folder / "results/runs/broken/digits/clients~20/dirichlet~0.3/fedavg/seed~0"
    assert read_json(cell / "result.json")["status"] == "failed"
    for file in ("results/tables/broken/main.md", "results/figures/broken/partition.png"):
        assert (broken.folder / file).is_file()
    assert not (broken.folder / "results/summary/broken/verified.txt").exists()
    assert "--forcerun summarise_runs" in done.stdout
    for file in cell.iterdir():
        file.unlink()
    plan = broken.planned("broken.yaml", asked=("--forcerun", "summarise_runs"))
    assert plan["train_grid"] == 1, "it is trained again"


def test_another_release_redoes_what_it_changed(smoke):
    """The last test of this file: it edits the version and the code of one rule."""
    store, result = smoke.folder / ".fedsdg/runs", smoke.folder / CELL / "fedsdg/seed~0/result.json"
    before, first = read_json(result), {place.name for place in store.iterdir()}
    version = smoke.wheel.package / "__init__.py"
    version.write_text(version.read_text().replace(__version__, "99.0.0"))
    with (smoke.wheel.package / "aggregation/rules/alignment.py").open("a") as rule:
        rule.write("\nassert True\n")
    done = smoke.reproduce("--", "--dry-run")
    assert "the page" not in done.stdout
    after = {"summarise_runs": 1, "render": 1, "verify_runs": 1}
    assert jobs_of(done) == {"train_grid": 1, **after}
    command = ["run", "--grid", "smoke", "small.yaml", "--runs-only", "--jobs", "1"]
    done = smoke.wheel(*command, cwd=smoke.folder)
    assert done.returncode == 0, done.stderr
    assert len(first) == 2 and len({place.name for place in store.iterdir()} - first) == 1
    now = read_json(result)
    assert now["source_hash"] != before["source_hash"] and now["last"] == before["last"]
