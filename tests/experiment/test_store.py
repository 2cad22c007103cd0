"""The store: each run once, never half, never changed."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from fedsdg.experiment.store import (
    MODELS,
    RECORDS,
    copy_to_results,
    get_or_run,
    is_current,
    store_folder,
    stored_run,
)
from fedsdg.files import HASHES, changed_file, read_json

FORK = multiprocessing.get_context("fork")


def write(folder: Path, content: str = "1") -> None:
    """Write the files of a run, and note that it was run."""
    with open("calls.txt", "a") as calls:
        calls.write("run\n")
    for name in RECORDS:
        (folder / name).write_text(f'{{"rounds": {content}, "address": "key"}}')


def calls() -> int:
    file = Path("calls.txt")
    return len(file.read_text().split()) if file.is_file() else 0


def slow_write(folder: Path) -> None:
    """Write the files of a run, and take a second for it."""
    Path("started").touch()
    time.sleep(1)
    write(folder)


def endless_write(folder: Path) -> None:
    """Begin to write the files of a run, and never end."""
    Path("started").touch()
    time.sleep(600)


def wait_for(file: str) -> None:
    while not Path(file).exists():
        time.sleep(0.01)


def test_a_run_is_run_once(folder):
    first = get_or_run("key", write)
    assert get_or_run("key", write) == first == stored_run("key")
    assert calls() == 1
    assert changed_file(first) is None
    assert [*store_folder("checkpoints").iterdir()] == []


def test_the_store_follows_the_environment(folder, monkeypatch):
    monkeypatch.setenv("FEDSDG_STORE", "elsewhere")
    assert get_or_run("key", write) == Path("elsewhere/runs/key")


@pytest.mark.parametrize("name", RECORDS)
def test_a_changed_file_means_a_new_run(folder, capsys, name):
    stored = get_or_run("key", write)
    content = (stored / name).read_bytes()
    (stored / name).write_bytes(content[:-1] + b" ")
    assert stored_run("key") is None
    get_or_run("key", write)
    assert calls() == 2 and (stored / name).read_bytes() == content
    assert f"{name} has changed" in capsys.readouterr().err


def test_a_run_that_fails_leaves_nothing_that_looks_finished(folder):
    def fail(place: Path) -> None:
        write(place)
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        get_or_run("key", fail)
    assert stored_run("key") is None
    assert [*store_folder("runs").iterdir()] == []


def test_checkpoints_survive_a_failure_and_go_with_success(folder):
    checkpoints = store_folder("checkpoints") / "key"

    def fail(place: Path) -> None:
        checkpoints.mkdir()
        (checkpoints / "round~1~ab.pt").write_bytes(b"state")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        get_or_run("key", fail)
    assert (checkpoints / "round~1~ab.pt").is_file()
    get_or_run("key", write)
    assert not checkpoints.exists()


def test_checkpoints_of_a_stored_run_are_removed(folder):
    get_or_run("key", write)
    left = store_folder("checkpoints") / "key"
    left.mkdir()
    (left / "round~1~ab.pt").write_bytes(b"state")
    get_or_run("key", write)
    assert calls() == 1 and not left.exists()


def test_of_two_processes_one_runs_and_the_other_waits(folder):
    processes = [FORK.Process(target=get_or_run, args=("key", slow_write)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(20)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert calls() == 1 and stored_run("key") is not None
    assert [*store_folder("checkpoints").iterdir()] == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_holds_nothing(folder, number):
    process = FORK.Process(target=get_or_run, args=("key", endless_write))
    process.start()
    wait_for("started")
    os.kill(process.pid, number)
    process.join(20)
    assert process.exitcode == -number
    assert stored_run("key") is None
    get_or_run("key", write)
    assert calls() == 1
    assert [file.name for file in store_folder("runs").iterdir()] == ["key"]


def test_processes_that_repair_a_run_do_not_damage_it(folder):
    stored = get_or_run("key", write)
    (stored / RECORDS[0]).write_text("damaged")
    processes = [FORK.Process(target=get_or_run, args=("key", slow_write)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(20)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert calls() == 2 and stored_run("key") is not None


def test_a_group_can_share_a_store(folder):
    before = os.umask(0o002)
    try:
        stored = get_or_run("key", write)
    finally:
        os.umask(before)
    assert stored.stat().st_mode & 0o777 == 0o775


def test_a_file_in_place_of_the_store_is_named(folder, monkeypatch):
    Path("file").touch()
    monkeypatch.setenv("FEDSDG_STORE", "file")
    with pytest.raises(OSError, match="cannot be written: .*/file is a file"):
        get_or_run("key", write)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_an_unwritable_store_is_named_at_once(folder):
    store_folder("runs").mkdir(parents=True)
    store_folder("runs").chmod(0o500)
    with pytest.raises(OSError, match="change the permissions of .* that of finished runs is FED"):
        get_or_run("key", write)
    assert calls() == 0


# --- Copies in results ----------------------------------------------------------------------------


def test_results_are_copies_with_the_names_of_the_run(folder):
    get_or_run("key", write)
    place = Path("results/seed~0")
    copy_to_results("key", place, {"label": "fedsdg"})
    assert is_current("key", place, {"label": "fedsdg"})
    assert not is_current("key", place, {"label": "other"})
    assert not is_current("another", place, {"label": "fedsdg"})
    result = read_json(place / "result.json")
    assert (result["status"], result["label"], result["rounds"]) == ("ok", "fedsdg", 1)
    stored = stored_run("key")
    for name in RECORDS[:-1]:
        assert (place / name).read_bytes() == (stored / name).read_bytes()
        assert not (place / name).samefile(stored / name)


@pytest.mark.parametrize("name", [*RECORDS, HASHES])
def test_changed_results_are_not_current(folder, name):
    get_or_run("key", write)
    place = Path("results")
    copy_to_results("key", place, {})
    (place / name).write_text("{}")
    assert not is_current("key", place, {})
    copy_to_results("key", place, {})
    assert is_current("key", place, {})


def test_hashes_come_last_and_models_of_another_run_go(folder, monkeypatch):
    get_or_run("key", write)
    place = Path("results")
    copy_to_results("key", place, {})
    (place / MODELS).write_bytes(b"of another run")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(OSError, match="make room, and give the command again"):
        copy_to_results("key", place, {})
    assert not is_current("key", place, {})
    assert not (place / HASHES).exists() and not (place / MODELS).exists()
