"""The committed record: whoever clones draws every published figure and table again, untrained."""

import json
import os
import platform
import random
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest

from fedsdg.analysis.records import Record
from fedsdg.analysis.render import write_regret, write_shown
from fedsdg.files import HASHES
from fedsdg.files.places import CROSS

ROOT = Path(__file__).resolve().parents[2]
RECORDED = sorted(file.parent.name for file in ROOT.glob("results/reference/*/runs.parquet"))


def pages(kind: str) -> list[tuple[str, str]]:
    """(experiment, name) of the published tables or figures."""
    return [
        (experiment, name)
        for experiment in RECORDED
        for name in json.loads(
            (ROOT / "results/reference" / experiment / "pages.json").read_text()
        )[kind]
    ]


FIGURES = pages("figures")
AGAIN = {**{f"render_record_{experiment}": 1 for experiment in RECORDED}, "compare_arenas": 1}


def drawn_by(job: str) -> bool:
    """Whether a job of ``AGAIN`` draws a figure: some records have tables alone."""
    folder = job.removeprefix("render_record_")
    return job == "compare_arenas" or folder in {experiment for experiment, _ in FIGURES}


def tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("this checkout is no git repository")
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def published(folder: Path) -> dict[str, bytes]:
    """What git keeps of the figures and of the record's tables, as it is in this folder."""
    names = [
        name
        for name in tracked()
        if name.startswith("paper_figures/")
        or (name.startswith("results/reference/") and name.count("/") == 3)
    ]
    return {name: (folder / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def clone(check_out, tmp_path_factory):
    """The tracked files as git would check them out, with times in any order.

    The last test alone changes more than times.
    """
    tmp_path = tmp_path_factory.mktemp("clone")
    project = check_out(
        tmp_path / "clone",
        f'#!/bin/sh\nPYTHONPATH="{tmp_path}/clone" exec "{sys.executable}" -m fedsdg "$@"\n',
    )
    times = random.Random(0)
    for name in tracked():
        file = project.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes((ROOT / name).read_bytes())
        os.utime(file, (times.randrange(10**9), times.randrange(10**9)))
    return project


def test_figures_and_tables_of_a_clone_need_no_training(clone):
    """Even when every published file is newer than what it is made from."""
    assert len(RECORDED) >= 2
    for name in published(clone.folder):
        os.utime(clone.folder / name)
    # Git keeps no SVG, and all files of a record that has tables alone.
    drawn = {job: 1 for job in AGAIN if drawn_by(job)}
    assert clone.planned("figures", "tables") == drawn
    assert clone.planned("figures", "--configfile", "config/ablation.yaml") == drawn


def test_what_is_computed_here_comes_from_here(clone):
    """The record stands in for no run, and an experiment that has none is trained."""
    everything = clone.planned()
    assert everything["train_grid"] == 1 and not set(everything) & set(AGAIN)
    smoke = clone.planned("figures", "--configfile", "config/smoke.yaml")
    assert smoke["train_grid"] == 1 and not set(smoke) & set(AGAIN)


def files_of(kind: str, experiment: str, name: str) -> list[str]:
    """The files that git keeps of a page."""
    if kind == "tables":
        return [f"results/reference/{experiment}/{name}.{suffix}" for suffix in ("csv", "md")]
    suffixes = ("pdf", "png", "csv", "json")
    return [f"paper_figures/{experiment}/{name}.{suffix}" for suffix in suffixes]


def assert_drawn_as_committed(figures: list[tuple[str, str]], folder: Path) -> None:
    """From the same files; and the same pixels, on such a machine as drew the committed ones.

    What numbers they show is compared without drawing, by `fedsdg verify`.
    """
    changed = []
    for page in figures:
        *pictures, _, sidecar = files_of("figures", *page)
        inputs = [json.loads((at / sidecar).read_text())["inputs"] for at in (ROOT, folder)]
        changed += [sidecar] if inputs[0] != inputs[1] else []
        if same_kind_of_machine(page[0]):
            changed += [
                name
                for name in pictures
                if (ROOT / name).read_bytes() != (folder / name).read_bytes()
            ]
    assert changed == [], "run `snakemake figures tables` and commit what changes"


@pytest.mark.slow
@pytest.mark.parametrize("experiment", RECORDED)
def test_every_figure_is_drawn_again_as_it_is_committed(experiment, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    mine = [page for page in FIGURES if page[0] == experiment]
    record = Record(Path("results/reference", experiment))
    below = tmp_path / "paper_figures" / experiment
    write_shown(record, tmp_path, below, [f"figure:{name}" for _, name in mine])
    assert_drawn_as_committed(mine, tmp_path)


@pytest.mark.slow
def test_what_spans_arenas_is_made_again_as_it_is_committed(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    record, figures = (Path(top, "across") for top in ("results/reference", "paper_figures"))
    arenas = [Record(record.parent / name) for name in CROSS]
    write_regret(arenas, tmp_path / record, tmp_path / figures, tex=False)
    for name in [n for kind in ("tables", "figures") for n in files_of(kind, "across", "regret")]:
        if name.endswith(".json"):
            inputs = [json.loads((at / name).read_text())["inputs"] for at in (ROOT, tmp_path)]
            assert inputs[0] == inputs[1]
        elif same_kind_of_machine(*CROSS):
            assert (ROOT / name).read_bytes() == (tmp_path / name).read_bytes(), name


@pytest.mark.slow
def test_the_workflow_draws_what_is_committed(clone):
    """Of two records, pages of all kinds of inputs: the tables of runs, partitions, a search."""
    drawn = [("tables", "label-skew", "main"), ("tables", "label-skew", "tuning")]
    drawn += [("figures", "label-skew", "partition"), ("tables", "cross-needs", "differences")]
    for experiment in RECORDED:
        record = clone.folder / "results/reference" / experiment
        mine = {kind: [name for page, of, name in drawn if (page, of) == (kind, experiment)]
                for kind in ("tables", "figures")}  # fmt: skip
        if any(mine.values()):
            (record / "pages.json").write_text(json.dumps(mine))
            (record / HASHES).unlink()
        else:
            shutil.rmtree(record)
    for page in drawn:
        for name in files_of(*page):
            (clone.folder / name).unlink()
    planned = clone.planned("figures", "tables")
    assert planned == {"render_record_label-skew": 1, "render_record_cross-needs": 1}
    done = clone.snakemake("figures", "tables", "--cores", "2")
    assert done.returncode == 0, done.stdout
    assert_drawn_as_committed([page[1:] for page in drawn if page[0] == "figures"], clone.folder)
    for kind, experiment, name in drawn:
        if kind == "figures":
            assert (clone.folder / f"paper_figures/{experiment}/{name}.svg").is_file()
            continue
        for file in files_of(kind, experiment, name):
            assert (clone.folder / file).read_bytes() == (ROOT / file).read_bytes(), file
    assert clone.planned("figures", "tables") == {}


@pytest.mark.slow
def test_another_instruction_set_gives_what_is_committed():
    """Vectors of another width sum in another order: what is committed holds rounded numbers."""
    done = subprocess.run(
        [sys.executable, "-W", "error::ImportWarning", "-m", "fedsdg", "verify", "--sample", "0"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **other_instructions()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def other_instructions() -> dict[str, str]:
    """The environment in which PyTorch, OpenBLAS and NumPy do without this processor's best.

    NumPy complains of names that it does not know or that the processor lacks, so it is asked.
    """
    from numpy._core import _multiarray_umath as numpy_core

    there = numpy_core.__cpu_features__
    dispatched = [name for name in numpy_core.__cpu_dispatch__ if there[name]]
    chosen = {"ATEN_CPU_CAPABILITY": "default", "NPY_DISABLE_CPU_FEATURES": " ".join(dispatched)}
    # What a Haswell has, OpenBLAS may be told to take; not every processor has as much.
    return chosen | ({"OPENBLAS_CORETYPE": "Haswell"} if there.get("AVX2") else {})


def same_kind_of_machine(*experiments: str) -> bool:
    """Whether these records, and so their figures, were made on a machine such as this one."""
    entries: list[dict[str, str]] = []
    for experiment in experiments:
        file = ROOT / "results/reference" / experiment / "provenance.json"
        origins = json.loads(file.read_text())
        entries += origins if isinstance(origins, list) else [origins]  # one, in an old record
    here = (platform.machine(), _processor())
    pinned = f"matplotlib=={matplotlib.__version__}\n" in (ROOT / "requirements.lock").read_text()
    return pinned and all((facts["machine"], facts["processor"]) == here for facts in entries)


def _processor() -> str:
    from fedsdg.files import provenance

    return str(provenance()["processor"])


def test_every_committed_figure_was_drawn_from_committed_files():
    """`fedsdg verify` compares their hashes."""
    names = tracked()
    sidecars = [name for name in names if name.startswith("paper_figures/") and ".json" in name]
    assert len(sidecars) == len(FIGURES) + AGAIN["compare_arenas"]
    for name in sidecars:
        for file in json.loads((ROOT / name).read_text())["inputs"]:
            assert file in names, f"{name} was drawn from {file}, which is not committed"
