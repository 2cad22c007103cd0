"""The committed record: whoever clones draws every published figure and table again, untrained."""

import hashlib
import json
import os
import platform
import random
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest

from fedsdg.analysis.plots import USUAL_FIGURES
from fedsdg.analysis.tables import USUAL_TABLES

ROOT = Path(__file__).resolve().parents[2]
RECORDED = sorted(file.parent.name for file in ROOT.glob("results/reference/*/runs.parquet"))


def pages(kind: str, usual: tuple[str, ...]) -> list[tuple[str, str]]:
    """(experiment, name) of the published tables or figures."""
    listed = []
    for experiment in RECORDED:
        file = ROOT / "results/reference" / experiment / "pages.json"
        named = json.loads(file.read_text()) if file.exists() else {}
        listed += [(experiment, name) for name in named.get(kind, usual)]
    return listed


FIGURES = pages("figures", USUAL_FIGURES)
AGAIN = {
    "redraw_figure": len(FIGURES),
    "rerender_table": len(pages("tables", USUAL_TABLES)),
}


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


@pytest.fixture
def clone(check_out, tmp_path):
    """The tracked files as git would check them out, with times in any order."""
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
    """Nor do they when every published file is newer than what it is made from."""
    assert len(RECORDED) >= 2
    assert clone.planned("figures", "tables") == AGAIN
    for name in published(clone.folder):
        os.utime(clone.folder / name)
    assert clone.planned("figures", "tables") == AGAIN
    assert clone.planned("figures", "--configfile", "config/ablation.yaml") == {
        "redraw_figure": AGAIN["redraw_figure"]
    }


def test_what_is_computed_here_comes_from_here(clone):
    """The record stands in for no run, and an experiment that has none is trained."""
    everything = clone.planned()
    assert everything["train_cell"] == 39 and not set(everything) & set(AGAIN)
    smoke = clone.planned("figures", "--configfile", "config/smoke.yaml")
    assert smoke["train_cell"] == 2 and "redraw_figure" not in smoke


@pytest.mark.slow
def test_a_clone_draws_what_is_committed(clone):
    before = published(clone.folder)
    done = clone.snakemake("figures", "tables", "--cores", "2")
    assert done.returncode == 0, done.stdout
    after = published(clone.folder)
    changed = {name for name in before if content(name, before) != content(name, after)}
    # Rasters and the last digit of a coordinate depend on processor and library; data do not.
    drawings = {name for name in before if name.endswith((".png", ".pdf"))}
    assert changed <= drawings, "run `snakemake figures tables` and commit what changes"
    if same_kind_of_machine():
        assert changed == set()
    for experiment, figure in FIGURES:
        for suffix in ("pdf", "svg", "png", "json"):
            assert (clone.folder / f"paper_figures/{experiment}/{figure}.{suffix}").is_file()
    assert clone.planned("figures", "tables") == {}


def content(name: str, files: dict[str, bytes]) -> object:
    """A file as it counts here: which sources drew a figure is a fact of the day it was drawn."""
    if not name.startswith("paper_figures/") or not name.endswith(".json"):
        return files[name]
    facts = json.loads(files[name])
    return {key: facts[key] for key in facts if key not in ("source_sha256", "version")}


def same_kind_of_machine() -> bool:
    """Whether the published figures were drawn on a machine such as this one."""
    facts = json.loads((ROOT / "results/reference/default/provenance.json").read_text())
    pinned = f"matplotlib=={matplotlib.__version__}\n" in (ROOT / "requirements.lock").read_text()
    return pinned and (facts["machine"], facts["processor"]) == (platform.machine(), _processor())


def _processor() -> str:
    from fedsdg.results import provenance

    return str(provenance()["processor"])


def test_every_committed_figure_says_from_which_committed_files_it_was_drawn():
    names = tracked()
    sidecars = [name for name in names if name.startswith("paper_figures/") and ".json" in name]
    assert len(sidecars) == AGAIN["redraw_figure"]
    for name in sidecars:
        inputs = json.loads((ROOT / name).read_text())["inputs"]
        assert inputs, name
        for file, digest in inputs.items():
            assert file in names, f"{name} was drawn from {file}, which is not committed"
            assert hashlib.sha256((ROOT / file).read_bytes()).hexdigest() == digest, (name, file)
