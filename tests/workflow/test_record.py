"""The committed record: whoever clones draws every published figure and table again, untrained."""

import hashlib
import json
import math
import os
import platform
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest

from fedsdg.analysis import plots, tables
from fedsdg.analysis.across import write_across
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
TABLES = pages("tables", USUAL_TABLES)
PAGES = [("tables", *page) for page in TABLES] + [("figures", *page) for page in FIGURES]
ARENAS = ("label-skew", "needs", "views")
AGAIN = {"redraw_figure": len(FIGURES), "rerender_table": len(TABLES), "compare_arenas": 1}


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
        "redraw_figure": AGAIN["redraw_figure"],
        "compare_arenas": 1,
    }


def test_what_is_computed_here_comes_from_here(clone):
    """The record stands in for no run, and an experiment that has none is trained."""
    everything = clone.planned()
    assert everything["train_cell"] == 39 and not set(everything) & set(AGAIN)
    smoke = clone.planned("figures", "--configfile", "config/smoke.yaml")
    assert smoke["train_cell"] == 2 and "redraw_figure" not in smoke


def draw(kind: str, experiment: str, name: str, folder: Path) -> None:
    """One page of a record, as the workflow's rules do it, below a folder."""
    record = Path("results/reference", experiment)
    if kind == "arenas":
        write_across(ARENAS, record.parent, folder / record, folder / "paper_figures" / experiment)
    elif kind == "tables":
        tables.write_table(record, name, folder / record / name)
    else:
        partitions = sorted((record / "partitions").rglob("*.parquet"))
        plots.write_figure(record, name, folder / "paper_figures" / experiment / name, partitions)


def files_of(kind: str, experiment: str, name: str) -> list[str]:
    """The files that git keeps of a page."""
    if kind == "arenas":
        tables = [
            *files_of("tables", experiment, "across"),
            *files_of("tables", experiment, "to_target"),
        ]
        return [*tables, *files_of("figures", experiment, "across")]
    if kind == "tables":
        return [f"results/reference/{experiment}/{name}.{suffix}" for suffix in ("csv", "md")]
    return [f"paper_figures/{experiment}/{name}.{suffix}" for suffix in ("pdf", "png", "json")]


def assert_as_committed(pages_drawn: list[tuple[str, str, str]], folder: Path) -> None:
    committed = published(ROOT)
    names = {name for page in pages_drawn for name in files_of(*page)}
    # Rasters and the last digit of a coordinate depend on processor and library; data do not.
    if not same_kind_of_machine():
        names = {name for name in names if not name.endswith((".png", ".pdf"))}
    changed = {
        name
        for name in names
        if not same_content(name, committed[name], (folder / name).read_bytes())
    }
    assert changed == set(), "run `snakemake figures tables` and commit what changes"


@pytest.mark.slow
@pytest.mark.parametrize("experiment", RECORDED)
def test_every_page_is_drawn_again_as_it_is_committed(experiment, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    if not same_kind_of_machine():
        monkeypatch.setattr(plots, "_FORMATS", {})  # they could not be compared
    mine = [page for page in PAGES if page[1] == experiment]
    for page in mine:
        draw(*page, tmp_path)
    assert_as_committed(mine, tmp_path)


@pytest.mark.slow
def test_what_spans_arenas_is_made_again_as_it_is_committed(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    page = ("arenas", "across", "")
    assert set(files_of(*page)) == {name for name in published(ROOT) if "/across/" in name}
    draw(*page, tmp_path)
    assert_as_committed([page], tmp_path)


@pytest.mark.slow
def test_the_workflow_draws_what_is_committed(clone):
    """Of two records, pages of all kinds of inputs: the summary, partitions, a search, comparisons
    named beforehand."""
    drawn = [("tables", "label-skew", "main"), ("tables", "label-skew", "tuning")]
    drawn += [("figures", "label-skew", "partition"), ("figures", "label-skew", "tuning")]
    drawn += [("tables", "needs", "primary")]
    for experiment in RECORDED:
        record = clone.folder / "results/reference" / experiment
        mine = {kind: [name for page, of, name in drawn if (page, of) == (kind, experiment)]
                for kind in ("tables", "figures")}  # fmt: skip
        if any(mine.values()):
            (record / "pages.json").write_text(json.dumps(mine))
        else:
            shutil.rmtree(record)
    for page in drawn:
        for name in files_of(*page):
            (clone.folder / name).unlink()
    planned = clone.planned("figures", "tables")
    assert planned == {"rerender_table": 3, "redraw_figure": 2}
    done = clone.snakemake("figures", "tables", "--cores", "2")
    assert done.returncode == 0, done.stdout
    assert_as_committed(drawn, clone.folder)
    for kind, experiment, name in drawn:
        if kind == "figures":
            assert (clone.folder / f"paper_figures/{experiment}/{name}.svg").is_file()
        else:
            assert (clone.folder / f"results/reference/{experiment}/{name}.tex").is_file()
    assert clone.planned("figures", "tables") == {}


_REDRAW = """
import json, sys
from pathlib import Path
from fedsdg.analysis import plots
from tests.workflow.test_record import draw
plots._FORMATS = {}  # what depends on the processor is not compared
for page in json.load(sys.stdin):
    draw(*page, Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_another_instruction_set_draws_what_is_committed(tmp_path):
    """Vectors of another width sum in another order: what is committed holds rounded numbers.

    Each table and figure once, of the largest record that shows it: its sums are the longest.
    """
    size = {
        name: (ROOT / f"results/reference/{name}/rounds.parquet").stat().st_size
        for name in RECORDED
    }
    pages_by_size = sorted(PAGES, key=lambda page: size[page[1]])
    largest = {(kind, name): (kind, experiment, name) for kind, experiment, name in pages_by_size}
    done = subprocess.run(
        [sys.executable, "-W", "error::ImportWarning", "-c", _REDRAW, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **other_instructions()},
        input=json.dumps([*largest.values()]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    committed, compared = published(ROOT), 0
    for page in largest.values():
        for name in files_of(*page):
            if not name.endswith((".png", ".pdf")):
                assert same_content(name, committed[name], (tmp_path / name).read_bytes()), name
                compared += 1
    assert compared == len({name for _, name in TABLES}) * 2 + len({name for _, name in FIGURES})


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


#: A number in a text: its sign may be a minus, its thousands may be set apart.
_NUMBER = re.compile(r"[-−]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")


def same_content(name: str, one: bytes, other: bytes) -> bool:
    """Whether two versions of a file say the same: words alike, numbers up to rounding.

    Which sources drew a figure is a fact of the day it was drawn.
    """
    if one == other or name.endswith((".png", ".pdf")):
        return one == other
    if name.endswith(".json"):
        facts = [json.loads(version) for version in (one, other)]
        for version in facts if name.startswith("paper_figures/") else ():
            del version["source_sha256"], version["version"]
        return same_facts(*facts)
    return same_text(one.decode(), other.decode())


def same_facts(one: object, other: object) -> bool:
    """Numbers up to rounding and texts as texts, however deep they lie."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_facts(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_facts, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-9)
    if isinstance(one, str) and isinstance(other, str):
        return same_text(one, other)
    return one == other


def same_text(one: str, other: str) -> bool:
    """Words and whole numbers alike; fractions up to rounding, or to one in their last place."""
    if _NUMBER.split(one) != _NUMBER.split(other):
        return False
    for mine, theirs in zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True):
        if mine == theirs:
            continue
        if "." not in mine + theirs and "e" not in mine + theirs:
            return False
        digits, _, power = mine.replace(",", "").replace("−", "-").partition("e")
        place = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
        values = [float(text.replace(",", "").replace("−", "-")) for text in (mine, theirs)]
        if not math.isclose(*values, rel_tol=1e-5, abs_tol=max(1e-9, 1.01 * place)):
            return False
    return True


def test_texts_are_compared_by_their_numbers():
    """What rounding moves passes, and nothing else does."""
    row = "fedsdg,12,0.912345,−1.25,1.5e-07,9f86d081"
    assert same_text(row, row.replace("0.912345", "0.912346").replace("1.25", "1.26"))
    assert same_text("1,234.5 s", "1,234.6 s") and same_text("-0.0", "0.0")
    for wrong in (
        row.replace("fedsdg", "fedavg"),
        row.replace("12", "13"),
        row.replace("0.912345", "0.912445"),
        row.replace("−1.25", "1.25"),
        row.replace("1.25", "1.3"),
        row.replace("1.5e-07", "1.5e-02"),
        row + ",0.5",
    ):
        assert not same_text(row, wrong), wrong
    assert same_facts({"a": [0.1, {"b": 2}]}, {"a": [0.1 + 1e-12, {"b": 2}]})
    assert not same_facts({"a": [0.1]}, {"a": [0.1001]})
    assert not same_facts({"a": 2}, {"a": 3})
    assert not same_facts({"a": None}, {"a": 0.0})


def same_kind_of_machine() -> bool:
    """Whether the published figures were drawn on a machine such as this one."""
    origins = json.loads((ROOT / "results/reference/needs/provenance.json").read_text())
    entries = origins if isinstance(origins, list) else [origins]  # one, in a record from before
    here = (platform.machine(), _processor())
    pinned = f"matplotlib=={matplotlib.__version__}\n" in (ROOT / "requirements.lock").read_text()
    return pinned and all((facts["machine"], facts["processor"]) == here for facts in entries)


def _processor() -> str:
    from fedsdg.files import provenance

    return str(provenance()["processor"])


def test_every_committed_figure_says_from_which_committed_files_it_was_drawn():
    names = tracked()
    sidecars = [name for name in names if name.startswith("paper_figures/") and ".json" in name]
    assert len(sidecars) == AGAIN["redraw_figure"] + AGAIN["compare_arenas"]
    for name in sidecars:
        inputs = json.loads((ROOT / name).read_text())["inputs"]
        assert inputs, name
        for file, digest in inputs.items():
            assert file in names, f"{name} was drawn from {file}, which is not committed"
            assert hashlib.sha256((ROOT / file).read_bytes()).hexdigest() == digest, (name, file)
