"""One run: the same bytes however often it was interrupted, and a record of each failure."""

import itertools
import multiprocessing
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from fedsdg.data.partition_files import read_partition
from fedsdg.experiment import execution
from fedsdg.experiment.execution import execute
from fedsdg.experiment.grid import run_here
from fedsdg.experiment.interruption import Stopped, stopped_by_signals
from fedsdg.experiment.runs import tasks_of
from fedsdg.experiment.store import RECORDS, store_folder
from fedsdg.files import changed_file, read_json
from tests.experiment.conftest import TINY, place_backbone, python, tiny

FORK = multiprocessing.get_context("fork")
SAME = ("rounds.parquet", "clients.parquet", "result.json", "models.safetensors")
"""The files of a run that hold no times."""
CONFLICTS = "conditions={label_conflict: {share: 0.5}, compute: {deadline: 40}}"
SETTINGS = ["training.save=selected", "federation.rounds=12", "checkpoint_seconds=0", CONFLICTS]


def first(*settings: str):
    config = tiny(*settings)
    return config, next(tasks_of(config))


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in SAME if (folder / name).is_file()}


def test_clients_keep_no_bytes_of_what_is_frozen(folder):
    kept = {}
    for method in ("fedavg", "ffa-lora", "fedper"):
        config, task = first(f"methods=[{method}]", "federation.rounds=1")
        assert run_here(config, task) is None
        kept[method] = read_json(task.folder / "result.json")
    assert [one["client_storage_bytes"] for one in kept.values()][:2] == [0, 0]
    fedper = kept["fedper"]
    assert fedper["client_storage_bytes"] == 4 * fedper["private_parameters"] > 0


def interrupted(task, round_: int):
    """Return a progress that stops a run as a signal does, after a round."""

    def progress(record):
        if record["round"] == round_:
            signal.raise_signal(signal.SIGTERM)

    return progress


def test_a_run_is_recorded_with_its_names(folder):
    config, task = first()
    assert run_here(config, task) is None
    result = read_json(task.folder / "result.json")
    assert result["status"] == "ok" and result["label"] == "fedsdg" and result["rounds"] == 4
    assert changed_file(task.folder) is None
    key = read_json(task.folder / "provenance.json")["address"]
    assert [file.name for file in store_folder("runs").iterdir()] == [key]
    assert [*store_folder("checkpoints").iterdir()] == []


def test_a_finished_run_is_taken_from_the_store(folder, monkeypatch, capsys):
    config, task = first()
    run_here(config, task)
    before = contents(task.folder)
    (task.folder / "result.json").unlink()
    monkeypatch.setattr(execution, "build", None)
    assert run_here(config, task) is None
    assert contents(task.folder) == before
    capsys.readouterr()
    (task.folder / "models").mkdir()
    assert run_here(config, task, trace=1) is None
    said = capsys.readouterr().err
    assert "so no batch is traced; set FEDSDG_STORE to" in said
    assert f"{task.folder}/models was exported before this run; delete it" in said


@pytest.mark.parametrize("round_", [1, 7, 12])
def test_a_stopped_run_goes_on_with_the_same_bytes(folder, monkeypatch, round_):
    config, task = first(*SETTINGS)
    run_here(config, task)
    undisturbed = contents(task.folder)
    assert len(undisturbed) == len(SAME)
    monkeypatch.setenv("FEDSDG_STORE", "other")
    with pytest.raises(Stopped, match=f"goes on after round {round_}"):
        execute(task, interrupted(task, round_))
    assert execute(task) is None
    assert contents(task.folder) == undisturbed
    assert read_json(task.folder / "provenance.json")["resumed_after"] == [round_]


CHILD = """
from fedsdg.config.layers import load
from fedsdg.experiment.execution import execute
from fedsdg.experiment.material import get_or_make
from fedsdg.experiment.runs import tasks_of

task = next(tasks_of(load(["tiny.yaml"], {settings})))
get_or_make(task)
execute(task, lambda record: print(record["round"], flush=True))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_survives_signals_at_any_moment(folder, made_backbone, number):
    settings = [*SETTINGS, "federation.rounds=60"]
    config, task = first(*settings)
    run_here(config, task)
    undisturbed = contents(task.folder)
    again = folder / "again"
    place_backbone(made_backbone, again)
    (again / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    script = again / "child.py"
    script.write_text(CHILD.format(settings=settings))
    for k in range(5):
        child = python(script, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for _ in range(2 + 3 * k):
            child.stdout.readline()
        time.sleep(0.013 * k)
        child.send_signal(number)
        assert child.wait(20) != 0
        child.stdout.close()
    last = python(script, stdout=subprocess.PIPE)
    rounds = last.communicate()[0].split()
    assert last.returncode == 0 and len(rounds) < 60
    assert contents(again / task.folder) == undisturbed
    assert [*(again / ".fedsdg/checkpoints").iterdir()] == []
    assert len([*(again / ".fedsdg/runs").iterdir()]) == 1


def dying(task, function: str, n: int) -> None:
    """Do a run, but die as by SIGKILL in the n-th call of a function of `os`."""
    calls = itertools.count(1)
    original = getattr(os, function)

    def call(*arguments, **named):
        if next(calls) == n:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **named)

    setattr(os, function, call)
    execute(task)
    os._exit(0)


@pytest.mark.slow
@pytest.mark.parametrize("function", ["replace", "fsync", "unlink"])
def test_a_run_survives_its_death_at_each_step(folder, monkeypatch, function):
    config, task = first("training.save=selected", "checkpoint_seconds=0", CONFLICTS)
    run_here(config, task)
    undisturbed = contents(task.folder)
    for n in itertools.count(1):
        monkeypatch.setenv("FEDSDG_STORE", f"store{n}")
        tried = replace(task, folder=Path(f"results{n}"))
        process = FORK.Process(target=dying, args=(tried, function, n))
        process.start()
        process.join(60)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        assert execute(tried) is None
        assert contents(tried.folder) == undisturbed
        assert changed_file(tried.folder) is None
        assert len([*store_folder("runs").iterdir()]) == 1
        assert [*store_folder("checkpoints").iterdir()] == []
    assert n > 3


def test_a_damaged_checkpoint_gives_way_to_the_one_before(folder):
    config, task = first(*SETTINGS)
    run_here(config, task)
    undisturbed = contents(task.folder)
    for stored in store_folder("runs").iterdir():
        stored.rename("moved")
    with pytest.raises(Stopped):
        execute(task, interrupted(task, 9))
    files = sorted(store_folder("checkpoints").glob("*/round~*"), key=lambda f: f.name)
    assert len(files) == 2
    newest = max(files, key=lambda file: int(file.name.split("~")[1]))
    newest.write_bytes(newest.read_bytes()[:-9])
    assert execute(task) is None
    assert contents(task.folder) == undisturbed


def test_a_failed_run_is_a_record_with_its_sentence(folder):
    config, task = first(
        "training.eta_g=1.0e+30", "training.optimiser=sgd", "training.clip_norm=1.0e+30"
    )
    sentence = run_here(config, task)
    assert sentence.startswith("FloatingPointError: ") and "eta_g" in sentence
    result = read_json(task.folder / "result.json")
    assert (result["status"], result["error"]) == ("failed", sentence)
    assert result["config"]["training"]["eta_g"] == 1e30
    assert changed_file(task.folder) is None
    assert all((task.folder / name).is_file() for name in RECORDS)
    assert [*store_folder("runs").iterdir()] == []
    assert [*store_folder("checkpoints").iterdir()] == []


ODD = """
from fedsdg.federation.losses import Loss


class Odd(Loss, name="odd"):
    def __call__(self, *_, **__):
        raise ValueError("no loss")
"""


def test_what_a_part_raises_comes_with_its_line(folder, capsys):
    Path("odd.py").write_text(ODD)
    config, task = first("plugins=[odd.py]", "training.loss=odd", "training.kernel=torch")
    assert run_here(config, task).endswith("no loss (odd.py, line 7)")
    assert "Traceback" not in capsys.readouterr().err


def test_a_run_that_the_machine_fails_keeps_its_checkpoints(folder, capsys):
    config, task = first(*SETTINGS)

    def full(record):
        if record["round"] == 3:
            raise MemoryError

    run_here(config, replace(task, folder=Path("other")))
    undisturbed = contents(Path("other"))
    for stored in store_folder("runs").iterdir():
        stored.rename("moved")
    assert "MemoryError" in execute(task, full)
    assert "Traceback" in capsys.readouterr().err, "it is no fault of the input"
    assert execute(task) is None
    assert contents(task.folder) == undisturbed
    assert read_json(task.folder / "provenance.json")["resumed_after"] in ([1], [2])


def test_a_run_that_fails_by_itself_loses_its_checkpoints(folder):
    _, task = first(*SETTINGS)
    saved = []

    def failing(record):
        saved.extend(store_folder("checkpoints").glob("*/round~*"))
        if record["round"] == 3:
            raise FloatingPointError("a loss is not finite")

    assert "a loss is not finite" in execute(task, failing)
    assert saved
    assert [*store_folder("checkpoints").iterdir()] == []


def test_a_full_disk_is_mentioned_once_and_the_run_goes_on(folder, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    config, task = first("checkpoint_seconds=0")
    monkeypatch.setattr("fedsdg.federation.checkpoints.write_bytes", full)
    assert run_here(config, task) is None
    assert capsys.readouterr().err.count("no checkpoint could be saved") == 1


def test_a_partition_of_another_run_is_made_again(folder):
    config, task = first()
    run_here(config, task)
    other = replace(task, run=task.run.replaced(partition_seed=1))
    assert execute(other) is None
    assert read_partition(task.partition).facts["seed"] == 1


def test_global_settings_are_as_before(folder):
    config, task = first("training.threads=1")
    before = torch.get_num_threads()
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    torch.set_num_threads(2)
    try:
        run_here(config, task)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


# --- Signals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_counts(number):
    with pytest.raises(Stopped) as stop, stopped_by_signals():
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(signal.SIGTERM)
    assert stop.value.exit_code == 128 + number


def test_a_step_is_not_broken_off():
    done = []
    with pytest.raises(Stopped), stopped_by_signals(at_once=False) as check:
        signal.raise_signal(signal.SIGTERM)
        done.append("step")
        check()
        done.append("not reached")
    assert done == ["step"]


def test_a_signal_in_the_last_step_still_ends_the_process():
    with pytest.raises(Stopped), stopped_by_signals(at_once=False):
        signal.raise_signal(signal.SIGINT)
        time.sleep(0)
