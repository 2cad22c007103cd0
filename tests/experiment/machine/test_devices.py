"""Several GPUs: whoever trains has one to itself, and gives it back however it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsdg.cli import main
from fedsdg.experiment.machine.devices import named_devices

ROOT = Path(__file__).parents[3]
# Takes a device, says which, keeps it for as long as its input stays open.
HOLD = """
import os, sys
from fedsdg.experiment.machine.devices import take_device
assert take_device() == take_device()
print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path):
    """Start a process that takes one of the devices 0 and 3."""
    started = []
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    environment["FEDSDG_DEVICES"] = "0, 3"

    def start() -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_two_processes_see_two_devices_and_a_third_waits_for_one_of_them(hold):
    first, second = hold(), hold()
    seen = {first.stdout.readline().strip(), second.stdout.readline().strip()}
    assert seen == {"0", "3"}
    third = hold()
    assert third.stderr.readline() == "waiting for one of the devices 0, 3\n"
    time.sleep(1.5)
    assert third.poll() is None
    second.send_signal(signal.SIGKILL)  # gives nothing back by itself
    second.wait()
    assert third.stdout.readline().strip() in seen
    first.stdin.close()
    assert first.wait(10) == 0
    assert hold().stdout.readline().strip() in seen


def test_without_the_variable_nothing_is_chosen(monkeypatch):
    monkeypatch.delenv("FEDSDG_DEVICES", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    from fedsdg.experiment.machine.devices import take_device

    assert named_devices() == () and take_device() is None
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5"


@pytest.mark.parametrize("text", ["", "0,", "0,0", "0, ,1"])
def test_what_names_no_devices_is_an_error(monkeypatch, text):
    monkeypatch.setenv("FEDSDG_DEVICES", text)
    with pytest.raises(ValueError, match="write the devices to be used, each once"):
        named_devices()


def test_a_grid_of_more_runs_at_once_than_devices_is_refused(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("FEDSDG_DEVICES", "0,1")
    monkeypatch.setenv("FEDSDG_CONFIG", str(ROOT / "config/config.yaml"))
    monkeypatch.chdir(tmp_path)
    cuda = ["--set", "training.device=cuda"]
    assert main(["run", "--grid", "--jobs", "3", *cuda]) == 2
    error = capsys.readouterr().err
    assert "--jobs is 3, but FEDSDG_DEVICES names 2 device(s)" in error
    assert list(tmp_path.iterdir()) == []
