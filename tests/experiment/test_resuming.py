"""Runs that are broken off and go on to the same bytes, whatever broke them off."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from fedsdg.experiment.machine.interruption import Stopped, stopped_by_signals
from fedsdg.federation import store as stores
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.models import Architecture, build_backbone, save_backbone
from tests.bad_inputs.outcomes import EVERYTHING
from tests.experiment.small import CONFIG, SKEW, do, read, same_bytes, small_run
from tests.suited import facts_of

ROUNDS = 3
#: Round 1 is not evaluated; with 9 clients somebody is drawn for the first time late.
SECTIONS = {"federation": {"clients": 9, "rounds": ROUNDS, "evaluate_every": 2}}
LATE = {"compute": {"slowest": 1.0, "fastest": 8.0, "arrivals": 3}}
#: With all that is remembered: late updates, paths, worth, models, the optimiser's memory.
EVERYTHING_KEPT = {
    "federation": {**SECTIONS["federation"], "trajectory": "shared", "shapley": "estimated"},
    "training": {"save": "selected", "private_optimiser": "keep"},
    "conditions": {**LATE, "dropout": {"probability": 0.1}},
}


@pytest.fixture
def go(tmp_path):
    """Do a run into a folder, as the command does; the store lies beside it."""

    def into(folder, name="fedsdg", sections=SECTIONS, **options):
        run = small_run(name, **sections)
        given = {"checkpoint_seconds": 0, **options}
        return do(run, tmp_path / folder, tmp_path / "runs", **given)

    return into


def folder_of(tmp_path):
    """The folder of the only unfinished run beside a store."""
    (folder,) = (tmp_path / "checkpoints").iterdir()
    return folder


def stopping(after, number=signal.SIGTERM):
    """A progress that sends a signal after a round, twice, as schedulers do."""

    def progress(t, _record):
        if t == after:
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)

    return progress


def undisturbed(go, tmp_path, **options):
    shutil.rmtree(tmp_path / "runs")
    assert go("undisturbed", checkpoint_seconds=1000, **options) is None
    return tmp_path / "undisturbed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seconds", [0, 1000])
def test_a_signal_saves_the_state_and_the_run_goes_on(go, tmp_path, number, seconds, capsys):
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Stopped, match="the same command goes on after round 2") as stop:
        go("out", progress=stopping(2, number), checkpoint_seconds=seconds)
    assert stop.value.exit_code == 128 + number
    assert handlers == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    assert not (tmp_path / "out").exists()
    assert not any((tmp_path / "runs").iterdir()), "nothing that looks finished"
    assert go("out") is None
    assert "going on after round 2" in capsys.readouterr().err
    assert not any((tmp_path / "checkpoints").iterdir()), "removed once the run is stored"
    before = read(tmp_path / "out", "provenance")
    assert before["resumed_after"] == [2] and before["cpu_seconds"] > 0
    assert same_bytes(tmp_path / "out", undisturbed(go, tmp_path))
    assert read(tmp_path / "undisturbed", "provenance")["resumed_after"] == []


@pytest.mark.parametrize("name", ["fedsdg", "scaffold", "ditto", "cgsv"])
def test_stopped_after_each_round_a_run_has_the_bytes_of_an_undisturbed_one(go, tmp_path, name):
    options = {"name": name, "sections": EVERYTHING_KEPT}
    for t in range(1, ROUNDS + 1):  # the last one is over, and its records are not yet written
        with pytest.raises(Stopped, match=f"goes on after round {t}"):
            go("out", progress=stopping(t), **options)
    assert go("out", **options) is None
    assert read(tmp_path / "out", "provenance")["resumed_after"] == [1, 2, 3]
    expected = undisturbed(go, tmp_path, **options)
    assert same_bytes(tmp_path / "out", expected)
    models = "models.safetensors"
    assert (tmp_path / "out" / models).read_bytes() == (expected / models).read_bytes()
    states = [read(folder, "provenance")["state"] for folder in (tmp_path / "out", expected)]
    assert states[0] == states[1]


def test_a_signal_whose_exception_got_lost_is_found_by_check():
    with pytest.raises(Stopped), stopped_by_signals() as check:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        except Stopped:
            pass  # as a finaliser would swallow it
        check()


def test_a_signal_that_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stopped_by_signals() as check:
            os.kill(os.getpid(), signal.SIGINT)
            check()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_short_run_writes_no_checkpoint(go, tmp_path):
    files = []

    def look(*_):
        files.extend(folder_of(tmp_path).glob("round~*"))

    assert go("out", checkpoint_seconds=30, progress=look) is None
    assert not files


@pytest.fixture
def stopped(go, tmp_path):
    """The folder of checkpoints of a run that was stopped after its second round."""
    with pytest.raises(Stopped):
        go("out", progress=stopping(2))
    return folder_of(tmp_path)


def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(go, stopped, tmp_path, capsys):
    (newest,) = stopped.glob("round~2*")
    newest.write_bytes(newest.read_bytes()[:-5])
    assert go("out") is None
    assert "going on after round 1" in capsys.readouterr().err
    assert same_bytes(tmp_path / "out", undisturbed(go, tmp_path))


def test_a_checkpoint_of_something_else_is_refused(go, stopped, tmp_path, monkeypatch):
    there = {"torch": "1.0", "numpy": "1.0"}
    monkeypatch.setattr("fedsdg.experiment.runs.libraries", lambda: there)
    failure = go("out")
    assert "was made for another run" in failure and f"delete {stopped}" in failure
    assert len(list(stopped.glob("round~*"))) == 2, "refused, not removed"


def test_one_process_at_a_time(go, stopped, capsys):
    with Checkpoints(stopped, {}).held():
        before = sorted(file.name for file in stopped.iterdir())
        assert go("out") is None
        assert before == sorted(file.name for file in stopped.iterdir()), "the other's files"
    error = capsys.readouterr().err
    assert "another process is at the same run" in error and "starts from the beginning" in error


def test_a_run_that_fails_by_itself_leaves_no_checkpoint(go, tmp_path):
    def spoil(t, _record):
        if t == 2:
            assert list(folder_of(tmp_path).glob("round~1~*"))
            raise FloatingPointError("the loss is not finite")

    assert "not finite" in go("out", progress=spoil)
    assert not any((tmp_path / "checkpoints").iterdir())
    assert go("out") is None, "with the cause mended it starts anew"
    assert read(tmp_path / "out", "provenance")["resumed_after"] == []


def test_a_run_that_the_machine_failed_goes_on(go, capsys):
    def out_of_memory(t, _record):
        if t == 3:
            raise MemoryError("no memory left")

    assert "no memory left" in go("out", progress=out_of_memory)
    assert go("out") is None
    assert "going on after round " in capsys.readouterr().err


def test_a_full_disk_is_one_sentence_and_stops_nothing(go, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedsdg.federation.checkpoints.write_bytes", full)
    assert go("out") is None
    assert capsys.readouterr().err.count("no checkpoint could be saved") == 1


def test_a_folder_that_cannot_be_made_is_one_sentence_before_the_first_round(go, tmp_path):
    rounds = []
    for name in ("runs", "checkpoints"):
        (tmp_path / name).write_text("a file in the way")
        failure = go("out", progress=lambda *_: rounds.append(1))
        assert name in failure and "\n" not in failure and not rounds
        assert read(tmp_path / "out")["status"] == "failed"
        (tmp_path / name).unlink()


def test_what_clients_keep_without_room_fails_the_run_in_one_sentence(go, monkeypatch):
    monkeypatch.setattr(stores, "MEMORY_LIMIT", 0)
    monkeypatch.setattr(stores.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 0))
    failure = go("out")
    assert "9 clients keep between rounds takes" in failure and "\n" not in failure


# --- Whole processes ------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_ends_with_130_and_143_and_goes_on(tmp_path):
    raw = yaml.safe_load(CONFIG.read_text())
    raw |= {"experiment": "small", "seeds": [0], "skews": [SKEW], "methods": ["fedsdg"]}
    raw["federation"] |= {"clients": 6, "clients_per_round": 2, "rounds": 400}
    raw["federation"] |= {"evaluate_every": 1}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(raw))
    torch.manual_seed(0)
    (tmp_path / "results/backbones").mkdir(parents=True)
    place = tmp_path / "results/backbones/letters.safetensors"
    recipe = {k: v for k, v in raw["backbones"]["letters"].items() if k != "source"}
    shape = Architecture(8, 4, 1, 32, 2, 2, (0.5,), (0.5,))
    save_backbone(build_backbone(shape), shape, place, facts_of(recipe))
    command = [sys.executable, "-m", "fedsdg", "run", "--config", "config.yaml"]
    command += ["--method", "fedsdg", "--output", "out"]
    package = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": package, "FEDSDG_STORE": str(tmp_path / "store")}
    options = {"cwd": tmp_path, "env": environment, "stderr": subprocess.PIPE, "text": True}
    last = 0
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, **options) as process:
            lines = [process.stderr.readline()]
            while f"round {last + 3}/" not in lines[-1]:
                lines.append(process.stderr.readline())
                assert process.poll() is None, lines
            process.send_signal(number)
            lines += process.stderr.readlines()
            assert process.wait(60) == code
        if last:
            assert any(f"going on after round {last} " in line for line in lines)
        assert "stopped; the same command goes on after round " in lines[-1]
        last = int(lines[-1].rsplit(maxsplit=1)[-1])
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_kills_of_a_grid_change_no_byte(tmp_path):
    """Four methods, killed while it saves and at any other moment, at each by each signal; a
    hundred times in `make everything`."""
    script = Path(__file__).with_name("faults_of_runs.py")
    named = ("FEDSDG_STORE", "FEDSDG_CONFIG")
    environment = {key: value for key, value in os.environ.items() if key not in named}
    environment["PYTHONPATH"] = str(script.parents[2])
    kills = 100 if EVERYTHING else 15
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(kills)],
        capture_output=True, text=True, timeout=60 * kills, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert sum(report["kills"].values()) == sum(report["while"].values()) == kills
    assert min(report["kills"].values()) >= kills // 3
    assert min(report["while"].values()) >= kills // 5
    # Who is killed before the first checkpoint, or before it has read one, does not say so.
    assert report["resumptions"] >= 1
    assert report["finished"] >= 1
    assert report["different"] == []
