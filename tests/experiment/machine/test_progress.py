"""How long is left, and what a person and a log see of a grid."""

import os
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fedsdg.experiment.machine import progress
from fedsdg.experiment.machine.progress import GridProgress, TimeLeft, round_progress

ROOT = Path(__file__).parents[3]
RECORD = {"evaluated": True, "train_loss": 0.5, "personal_accuracy": None, "global_accuracy": 0.25}


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("seconds", "done", "total", "said"),
    [
        (10, 2, 4, ", about 10 s left"),
        (10, 1, 8, ", about 70 s left"),
        (10, 1, 13, ", about 2 min left"),
        (3600, 1, 2, ", about 60 min left"),
        (3600, 1, 5, ", about 4 h left"),
        (0.2, 1, 2, ", about 1 s left"),
        (10, 0, 4, ""),
        (10, 4, 4, ""),
    ],
)
def test_what_is_left_takes_as_long_as_what_was_done(seconds, done, total, said, clock):
    left = TimeLeft()
    clock[0] += seconds
    assert left(done, total) == said


def test_a_run_that_goes_on_counts_only_the_rounds_it_does_now(clock, capsys):
    """Rounds 7 and 8 of 10 took 6 s; two are left."""
    with round_progress("a run", 10) as report:
        clock[0] += 6
        report(7, {**RECORD, "evaluated": False})
        report(8, RECORD)
        report(10, RECORD)
    assert capsys.readouterr().err.splitlines() == [
        "a run: round 8/10 loss=0.500 global=0.250, about 6 s left",
        "a run: round 10/10 loss=0.500 global=0.250",
    ]


def test_a_grid_in_a_log_says_how_many_runs_are_done_and_how_long_is_left(clock, capsys):
    """Of 4 runs one was finished before. One takes 10 s, one comes from the store at once."""
    with GridProgress("arena", 5) as bar:
        assert bar.stopped == "stopped before the first run; the same command goes on"
        bar.start(4, 1)
        clock[0] += 10
        for number in range(1, 6):
            bar.round("a", {**RECORD, "round": number, "evaluated": number == 5})
        bar.finished("a", None)
        bar.round("b", {**RECORD, "round": 3, "evaluated": False})
        bar.finished("b", "it failed")
        assert bar.stopped.startswith("stopped: 3 of 4 runs are finished, and the rounds")
        bar.finished("c", None)
    assert capsys.readouterr().err.splitlines() == [
        "arena: 4 runs, 1 of them finished before",
        "a: round 5/5 loss=0.500 global=0.250",
        "arena: [2/4] a: ok, about 20 s left",
        "arena: [3/4] b: it failed, about 5 s left",
        "arena: [4/4] c: ok",
    ]


TINY = {
    "experiment": "tiny",
    "skews": ["iid"],
    "seeds": [0],
    "methods": ["fedavg", "fedprox"],
    "trainable": "full",
    "federation": {"clients": 6, "clients_per_round": 2, "rounds": 400, "evaluate_every": 100},
    "search": {"seeds": [50], "space": {"fedavg": {"eta_g": [0.01, 0.02, 0.03]}}},
    "checkpoint_seconds": 1000,
}


@pytest.fixture
def terminal(tmp_path):
    """Starts a command on a terminal of its own, and reads what it shows."""
    pty, termios, fcntl = map(pytest.importorskip, ("pty", "termios", "fcntl"))
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 150, 0, 0))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FEDSDG_STORE": str(tmp_path / "store")}
    environment.pop("FEDSDG_CONFIG", None)

    def start(*arguments):
        return subprocess.Popen(
            [sys.executable, "-m", "fedsdg", *arguments],
            stdout=subprocess.DEVNULL, stderr=theirs, cwd=tmp_path, env=environment,
        )  # fmt: skip

    def read_until(pattern, shown=""):
        while not re.search(pattern, shown):
            shown += os.read(ours, 1 << 16).decode(errors="replace")
        return shown

    yield start, read_until
    os.close(ours)
    os.close(theirs)


@pytest.mark.slow
def test_a_grid_on_a_terminal_has_a_bar_with_what_is_left_and_ctrl_c_says_how_to_go_on(
    terminal, tmp_path
):
    start, read_until = terminal
    process = start("run", "--grid", "tiny.yaml")
    # Runs of all, rounds of all, elapsed and left.
    shown = read_until(r"tiny \[0/2\]: +\d+%\|.*\| \d+/800 \[\d\d:\d\d<\d\d:\d\d.*fedavg")
    assert "round 100/400" not in shown, "lines are for logs"
    process.send_signal(signal.SIGINT)
    shown = read_until("goes on from there")
    assert process.wait(60) == 130
    assert "fedsdg: stopped: 0 of 2 runs are finished, and the rounds that others had" in shown
    kept = list((tmp_path / "store").rglob("*"))
    assert any("round" in file.name or file.suffix == ".safetensors" for file in kept), kept


@pytest.mark.slow
def test_a_search_on_a_terminal_has_a_bar_and_ctrl_c_says_what_is_known(terminal, tmp_path):
    start, read_until = terminal
    short = ("--set", "federation.rounds=20", "federation.evaluate_every=20")
    arguments = ("--jobs", "1", "--output", "found.json", *short)
    process = start("search", "--config", "tiny.yaml", *arguments)
    read_until(r"search: +33%\|.*\| 1/3 \[\d\d:\d\d<\d\d:\d\d")
    process.send_signal(signal.SIGINT)
    shown = read_until("goes on from there")
    assert process.wait(60) == 130
    assert "fedsdg: stopped: 1 of 3 runs of the search are finished, what they reached" in shown
    assert (tmp_path / "found.json").is_file()
