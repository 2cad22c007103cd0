"""Workers: one task's fault is no other's, and none outlives its parent."""

import os
import signal
import subprocess
import time
from contextlib import closing

import pytest

from fedsdg.experiment.workers import ALLOCATOR, environments, run_tasks, visible_gpus
from tests.experiment.conftest import ended, python, wait_until
from tests.experiment.tasks import do


def outcomes(tasks, count=2, on_note=lambda *_: None):
    return dict(run_tasks(do, tasks, environments("cpu", 1, count), (), on_note))


@pytest.mark.parametrize("count", [1, 3])
def test_faults_cost_their_own_task(count):
    found = outcomes(["a", "kill", "b", "raise", "c", "exit", "d"], count)
    for task in "abcd":
        assert found[task] == f"done {task}"
    assert str(found["raise"]) == "it cannot work"
    assert "fewer --jobs" in str(found["kill"])
    assert str(found["exit"]) == "its process ended with exit code 3"


def test_a_plugin_that_cannot_be_loaded_fails_each_task_by_name(tmp_path):
    (tmp_path / "broken.py").write_text("1 / 0")
    found = dict(run_tasks(do, ["a", "b"], [{}], (str(tmp_path / "broken.py"),)))
    assert {*found} == {"a", "b"}
    for failure in found.values():
        assert "broken.py is no plugin: ZeroDivisionError" in str(failure)


def test_a_plugin_that_is_edited_meanwhile_disturbs_no_task(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("x = 1")
    tasks = run_tasks(do, ["a", "b"], [{}], (str(file),), lambda *_: file.write_text("1 / 0"))
    assert dict(tasks) == {"a": "done a", "b": "done b"}


def test_notes_arrive_in_order_before_the_outcome():
    notes = []
    with closing(run_tasks(do, ["a"], [{}], (), lambda *note: notes.append(note))) as found:
        assert next(found) == ("a", "done a")
        assert notes == [("a", 0), ("a", 1), ("a", 2)]


def test_tasks_are_taken_when_a_worker_is_free():
    taken = []

    def tasks():
        for name in "abcdef":
            taken.append(name)
            yield name

    with closing(run_tasks(do, tasks(), [{}])) as found:
        next(found)
        assert taken == ["a"]


def test_a_worker_that_is_killed_is_replaced():
    def kill(task, value):
        if task == "sleep":
            os.kill(value, signal.SIGKILL)

    found = outcomes(["sleep", "a"], 1, kill)
    assert isinstance(found["sleep"], RuntimeError) and found["a"] == "done a"


def test_an_exception_ends_workers_at_once():
    processes = []

    def stop(_, process):
        processes.append(process)
        raise KeyboardInterrupt

    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        next(run_tasks(do, ["sleep"], [{}], (), stop))
    assert time.monotonic() - begin < 20
    assert ended(processes[0])


PARENT = """
from fedsdg.experiment.workers import run_tasks
from tests.experiment.tasks import do

if __name__ == "__main__":
    list(run_tasks(do, ["sleep", "sleep"], [{}, {}], (), lambda _, n: print(n, flush=True)))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_worker_outlives_its_parent(tmp_path, number):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = python(script, stdout=subprocess.PIPE)
    processes = [int(parent.stdout.readline()) for _ in range(2)]
    parent.send_signal(number)
    parent.wait(40)
    wait_until(lambda: all(ended(process) for process in processes))


# --- Environments ---------------------------------------------------------------------------------


def test_workers_take_the_visible_gpus_in_turn(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 5")
    found = environments("cuda", 1, 3)
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found] == ["2", "5", "2"]
    assert {one["FEDSDG_SHARING"] for one in found} == {"2"}
    assert all(one["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8" for one in found)
    seen = sorted(outcome for _, outcome in run_tasks(do, ["environment"] * 2, found[:2]))
    assert seen == [("2", "1"), ("5", "1")]


def test_runs_on_a_cpu_leave_gpus_alone(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    found = environments("cpu", 4, 2)
    assert found == [{**ALLOCATOR, **dict.fromkeys(THREADS, "4")}] * 2


THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def test_gpus_are_counted_without_cuda(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus() == []
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho 'GPU 0: H100 (UUID: a)'\necho 'GPU 1: H100 (UUID: b)'\n")
    command.chmod(0o755)
    assert visible_gpus() == ["0", "1"]


def test_this_process_keeps_its_environment():
    before = dict(os.environ)
    outcomes(["a"])
    assert dict(os.environ) == before
