"""The comparison with another commit: turns, attempts, what is said; real work is timed."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import regression, runs, same_bytes
from benchmarks.compare import compare
from benchmarks.regression import ATTEMPTS, LIMIT, PIECES, TURNS, Unable, ratio, worker

ROOT = Path(__file__).parents[2]


def test_the_best_times_of_both_are_compared_in_turns():
    order = []

    def clock(name, times):
        left = iter(times)

        def timed():
            order.append(name)
            return next(left)

        return timed

    slow_once = [3.0] * (TURNS - 1) + [1.2]
    assert ratio(clock("here", slow_once), clock("there", [9.0, *[1.0] * TURNS])) == 1.2
    assert order == ["there", "here"] * TURNS, "one attempt is enough where nothing is slower"


def test_slower_is_what_is_slower_in_every_attempt():
    calls = []

    def here():
        calls.append(1)
        return LIMIT * 1.1

    assert ratio(here, lambda: 1.0) == pytest.approx(LIMIT * 1.1)
    assert len(calls) == ATTEMPTS * TURNS
    noisy = iter([9.0] * TURNS + [1.0] * TURNS)
    assert ratio(lambda: next(noisy), lambda: 1.0) == 1.0


def stand_ins(monkeypatch, seconds):
    """Workers that take ``seconds[checkout, piece]``; an exception there is what goes wrong."""

    @contextmanager
    def made(checkout, piece):
        found = seconds[checkout, piece]
        if isinstance(found, Exception):
            raise found
        yield lambda: found

    monkeypatch.setattr(regression, "worker", made)


def test_a_slower_piece_is_named_and_an_older_commit_may_lack_one(monkeypatch, capsys):
    here, there = regression.ROOT, Path("base")
    seconds = {(here, "a"): 1.0, (there, "a"): 1.0, (here, "b"): 2.0, (there, "b"): 1.0}
    seconds |= {(here, "c"): 1.0, (there, "c"): Unable("c in base: no rule 'c'")}
    stand_ins(monkeypatch, seconds)
    assert regression.regressions(there, ["a", "b", "c"]) == ["b"]
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "a: 1.00 times as long as there: ok"
    assert said[1] == f"b: 2.00 times as long as there: slower, at most {LIMIT} is allowed"
    assert "c: not judged" in said[2]
    seconds[here, "a"] = Unable("a here: broken")
    with pytest.raises(Unable, match="a here: broken"):
        regression.regressions(there, ["a"])


@pytest.mark.parametrize(
    "main",
    [regression.main, runs.main, same_bytes.main, lambda words: compare(*words)],
    ids=["regression", "runs", "same_bytes", "compare"],
)
def test_an_unknown_commit_is_named(main, capsys):
    assert main(["nowhere"]) == 2
    assert "there is no commit 'nowhere' to compare with" in capsys.readouterr().err


@pytest.mark.slow
def test_a_process_does_the_work_and_tells_its_seconds():
    (round_,) = (piece for piece in PIECES if piece == "a round of fedavg")
    with worker(ROOT, round_) as timed:
        assert timed() > 0 and timed() > 0
    with (
        pytest.raises(Unable, match=r"a round of nothing in .*: .*nothing"),
        worker(ROOT, "a round of nothing"),
    ):
        pass


@pytest.mark.slow
def test_rounds_of_training_are_kept_as_usual(tmp_path):
    """As pytest-benchmark saves them, so that its --benchmark-compare finds them."""
    command = [sys.executable, "-m", "pytest", "benchmarks/bench_training.py", "-q", "--short"]
    command += ["--ours-alone", "-k", "digits and fedavg", "-p", "no:cacheprovider"]
    command += ["--benchmark-autosave", f"--benchmark-storage={tmp_path}"]
    alone = {name: value for name, value in os.environ.items() if "XDIST" not in name}
    done = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    (saved,) = tmp_path.rglob("0001_*.json")
    (one,) = json.loads(saved.read_text())["benchmarks"]
    assert one["name"] == "test_round[digits-fedavg]"
    assert 0 < one["extra_info"]["ours float32"] <= one["stats"]["max"]
