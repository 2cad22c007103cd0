"""Processes side by side: tasks in order, and no fault of one task is another's."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsdg.experiment.machine.processes import Failed, Workers

TASKS = """
import os, signal, time

def double(task, note):
    note(f"half of {2 * task}")
    return 2 * task

def faulty(task, note):
    if task == "raise":
        raise ValueError("three is odd")
    if task == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "exit":
        os._exit(7)
    if task == "unpicklable":
        return lambda: None
    return os.getpid()

def environment(task, note):
    return os.environ.get(task)

def wait(task, note):
    open(f"{task}/{os.getpid()}", "w").close()
    try:
        time.sleep(600)
    finally:
        open(f"{task}/cleaned", "w").close()

def orphaned(task, note):
    from fedsdg.experiment.machine.interruption import Stopped, stopped_by_signals
    # What is saved is saved within the block: the note's signal and that of the parent's death
    # may come one after the other, and there the second is ignored.
    with stopped_by_signals(at_once=False) as check:
        outcome = "nothing"
        try:
            parent = os.getppid()
            os.kill(parent, signal.SIGKILL)
            while os.getppid() == parent:
                time.sleep(0.01)
            note("unheard")
            check()
        except (Stopped, Exception) as end:
            outcome = type(end).__name__
        time.sleep(0.2)
        with open(f"{task}/writing", "w") as file:
            file.write(outcome)
        os.replace(f"{task}/writing", f"{task}/outcome")
"""


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A module that the processes can import too."""
    (tmp_path / "tasks_of_the_test.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    import tasks_of_the_test

    yield tasks_of_the_test
    sys.modules.pop("tasks_of_the_test")


def test_every_task_has_its_outcome_and_its_notes(work):
    notes = []
    with Workers(2, {}) as workers:
        found = dict(workers.map(work.double, range(7), lambda *note: notes.append(note)))
        again = dict(workers.map(work.double, [10]))
    assert found == {n: 2 * n for n in range(7)} and again == {10: 20}
    assert sorted(notes) == [(n, f"half of {2 * n}") for n in range(7)]


def test_one_worker_takes_tasks_in_order_and_only_when_it_is_free(work):
    taken, seen = [], []

    def tasks():
        for n in range(4):
            taken.append(n)
            yield n

    with Workers(1, {}) as workers:
        for n, _ in workers.map(work.double, tasks()):
            assert taken == list(range(n + 1))
            seen.append(n)
    assert seen == [0, 1, 2, 3]


def test_faults_are_outcomes_and_the_others_go_on(work, capfd):
    with Workers(1, {}) as workers:
        found = dict(workers.map(work.faulty, ["raise", "a", "die", "b", "exit", "unpicklable"]))
    assert found["raise"] == Failed("ValueError", "three is odd")
    assert found["die"].kind == "killed" and "signal 9" in str(found["die"])
    assert found["exit"].kind == "killed" and "exit code 7" in str(found["exit"])
    assert found["unpicklable"].kind == "killed"
    assert found["a"] != found["b"], "a new process took the place of the one that was killed"
    assert "three is odd" in capfd.readouterr().err, "the traceback stands in the log"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_is_killed_between_two_tasks_is_replaced(work, number):
    with Workers(2, {}) as workers:
        before = set(dict(workers.map(work.faulty, ["a", "b"])).values())
        for process in before:
            os.kill(process, number)
        time.sleep(0.5)
        after = dict(workers.map(work.faulty, ["c", "d"]))
    assert all(isinstance(process, int) for process in after.values())
    assert not before & set(after.values())


def test_processes_have_the_environment_and_the_parent_keeps_its_own(work):
    with Workers(1, {"FEDSDG_TEST_OF_WORKERS": "yes"}) as workers:
        assert dict(workers.map(work.environment, ["FEDSDG_TEST_OF_WORKERS"])) == {
            "FEDSDG_TEST_OF_WORKERS": "yes"
        }
    assert "FEDSDG_TEST_OF_WORKERS" not in os.environ


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_its_parent(work, tmp_path, number):
    """However the parent ends, what works for it cleans up and ends."""
    parent, place = start_parent(tmp_path, "wait")
    until(lambda: list(place.iterdir()))
    parent.send_signal(number)
    parent.wait(60)
    until(lambda: (place / "cleaned").exists())


def test_a_note_that_nobody_hears_stops_the_task_as_a_signal_would(work, tmp_path):
    """The task has not failed: it may save what it has and be taken up again."""
    parent, place = start_parent(tmp_path, "orphaned")
    parent.wait(60)
    until(lambda: (place / "outcome").exists())
    assert (place / "outcome").read_text() == "Stopped"


def start_parent(tmp_path, task):
    """A process with a worker that does `task`; (the process, the folder given to the task)."""
    place = tmp_path / "place"
    place.mkdir()
    code = (
        "import tasks_of_the_test as work\n"
        "from fedsdg.experiment.machine.processes import Workers\n"
        "if __name__ == '__main__':\n"
        "    with Workers(1, {}) as workers:\n"
        f"        list(workers.map(work.{task}, [{str(place)!r}]))\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])])
    parent = subprocess.Popen(
        [sys.executable, script], env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.DEVNULL
    )
    return parent, place


def until(condition) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("waited for a minute")
