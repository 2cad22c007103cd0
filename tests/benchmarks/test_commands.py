"""The benchmarks as commands: measured and written, refused, compared with another commit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import compare, on_gpu
from benchmarks.compare import Piece, UnableError
from fedsdg.config.config import Config
from fedsdg.config.layers import merged

ROOT = Path(__file__).parents[2]
FOLDER = "benchmarks"
AGGREGATE = """
def aggregate(rule, theta, clients, **counts):
    return sum(i * i for i in range({count}))
"""
PIECE = Piece("rule", ("krum", 3, 50))


def measured(tmp_path, *words):
    """Return the rows of some benchmarks in the short form, run in a process of their own."""
    # pytest-benchmark measures nothing in a worker of xdist.
    alone = {name: value for name, value in os.environ.items() if "XDIST" not in name}
    file = tmp_path / "measured.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--short"]
    command += ["--measured", str(file), *words]
    done = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True)
    return json.loads(file.read_text()) if file.is_file() else None, done


@pytest.mark.slow
def test_the_short_form_writes_rows_for_all_questions(tmp_path):
    chosen = "krum or digits-fedavg or files"
    written, done = measured(tmp_path, FOLDER, "-k", chosen)
    assert done.returncode == 0, done.stdout
    assert written["machine"]["threads"] == 1
    assert "host" not in written["machine"]
    questions = {row["question"] for row in written["rows"]}
    assert questions >= {"rules", "dictionaries", "rounds"}
    assert all(row["seconds"] > 0 and row["ratio"] > 0 for row in written["rows"])
    for row in written["rows"]:
        assert row["code"] != "ours" or row["ratio"] == 1
        if row["question"] == "files" and row["code"] != "limit":
            assert row["peak_bytes"] > 1 << 24


def test_timings_of_processes_side_by_side_are_refused(tmp_path):
    written, done = measured(tmp_path, f"{FOLDER}/bench_dictionaries.py", "-n", "2")
    assert written is None
    assert done.returncode == 4
    assert "measure without --numprocesses" in done.stderr


def checkout(folder, count):
    """Make a checkout whose `aggregate` counts to a number."""
    package = folder / "fedsdg" / "aggregation"
    package.mkdir(parents=True)
    (folder / "fedsdg" / "__init__.py").touch()
    (package / "__init__.py").write_text(AGGREGATE.format(count=count))
    return folder


@pytest.fixture
def base(tmp_path, monkeypatch):
    """A slow commit; this tree is five times as fast."""
    monkeypatch.setattr(compare, "ROOT", checkout(tmp_path / "here", 200_000))
    return checkout(tmp_path / "base", 1_000_000)


def test_a_faster_tree_passes_and_a_slower_one_does_not(base, monkeypatch, capsys):
    rows = compare.compare(base, [PIECE], 2, 1.5)
    (ratio,) = (row["ratio"] for row in rows if row["code"] == compare.BASE)
    assert ratio > 2
    assert "krum at 3 × 50" in capsys.readouterr().out
    here = compare.ROOT
    monkeypatch.setattr(compare, "ROOT", base)
    rows = compare.compare(here, [PIECE], 2, 1.5)
    assert min(row["ratio"] for row in rows) < 1 / 1.5
    assert "slower, at most 1.5 is allowed" in capsys.readouterr().out


def test_what_the_other_commit_cannot_do_is_named_and_left_out(base, capsys):
    (base / "fedsdg/aggregation/__init__.py").write_text("raise ImportError('no such door')")
    assert compare.compare(base, [PIECE], 2, 1.5) == []
    assert "not compared" in (told := capsys.readouterr().out) and "no such door" in told


def test_what_this_tree_cannot_do_is_an_error(base):
    (compare.ROOT / "fedsdg/aggregation/__init__.py").write_text("")
    with pytest.raises(UnableError, match="cannot import name 'aggregate'"):
        compare.compare(base, [PIECE], 2, 1.5)


def test_a_miss_is_measured_again_and_unequal_work_is_refused():
    spent = iter([9.0, 9.0, 1.0, 1.0])
    timings = compare.measure(lambda: (next(spent), 7), lambda: (1.0, 7), 2, 1.5)
    assert timings.ratio(compare.BASE) == 1
    with pytest.raises(UnableError, match="not the same work"):
        compare.measure(lambda: (1.0, 7), lambda: (1.0, 8), 2, 1.5)


def test_a_commit_that_does_not_exist_is_an_error(capfd):
    assert compare.main(["no-such-commit"]) == 2
    assert "there is no commit 'no-such-commit'" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("last", "code", "told"),
    [
        ("1", 0, "all stages are well"),
        ("2", 1, "the same rounds gave different bytes"),
        ("import nothing_like_it", 1, "failed: run"),
    ],
)
def test_stages_on_a_gpu_are_judged(tmp_path, monkeypatch, capsys, last, code, told):
    second = "print(2)" if last == "2" else "print(1)"
    stages = {"twice-1": ["-c", "print(1)"], "twice-2": ["-c", second], "run": ["-c", last]}
    monkeypatch.setattr(on_gpu, "stages", lambda out, device: stages)
    assert on_gpu.main(["--out", str(tmp_path / "out"), "--device", "cpu"]) == code
    assert told in capsys.readouterr().out
    assert (tmp_path / "out/twice-1.txt").read_text() == "1\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_done(tmp_path, capsys):
    assert on_gpu.main(["--out", str(tmp_path / "out")]) == 2
    assert "torch sees no GPU" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_run_on_a_gpu_is_cifar100_if_its_data_are_there(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSDG_DATA", str(tmp_path))
    without = on_gpu.stages(tmp_path, "cuda")
    assert without["run"] == without["twice-1"]
    (tmp_path / "cifar100").mkdir()
    words = on_gpu.stages(tmp_path, "cuda")["run"]
    assert "cifar100-needs" in words
    run, *others = Config.read(merged(["cifar100-needs"])).runs()
    assert {run.dataset, *(one.dataset for one in others)} == {"cifar100"}, "none is to be named"
