"""Pretraining that is broken off and goes on: the same bytes, whatever broke it off."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import safetensors
import torch
import yaml
from safetensors.torch import load_file, save_file

from fedsdg.experiment.backbones.pretraining import pretrain
from fedsdg.experiment.machine.interruption import Stopped, stopped_by_signals
from fedsdg.models import weights_sha256

ROOT = Path(__file__).parents[3]
FILES = ("tiny.safetensors", "tiny.json")
OPTIONS = {
    "image_size": 8, "patch_size": 4, "channels": 1, "dim": 16, "depth": 2, "heads": 2,
    "images": 256, "held_out": 64, "epochs": 6, "batch_size": 32, "threads": 1,
    "ema": 0.99, "drop_path": 0.2, "augment": "crop-flip", "precision": "bfloat16",
}  # fmt: skip


def make(folder, **changes):
    """Pretrain into a folder, saving after every step."""
    return pretrain(
        {**OPTIONS, **changes},
        folder / "tiny.safetensors",
        checkpoints=folder / "checkpoints",
        checkpoint_seconds=0,
        progress=False,
    )


def signal_when_kept(folder, number):
    """This process gets a signal as soon as there is a checkpoint."""

    def send():
        while not list(folder.glob("checkpoints/backbone~*")):
            time.sleep(0.0002)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.fixture
def stopped(tmp_path):
    """The checkpoint of a pretraining that was stopped on its way in ``tmp_path / "out"``."""
    with stopped_by_signals(), pytest.raises(Stopped) as stop:
        thread = signal_when_kept(tmp_path / "out", signal.SIGTERM)
        try:
            make(tmp_path / "out")
        finally:
            thread.join()
    assert stop.value.exit_code == 143
    assert "stopped; the same command goes on after step" in str(stop.value)
    (file,) = (tmp_path / "out" / "checkpoints").iterdir()
    assert f"after step {int(load_file(file)['done'])} of 48" in str(stop.value)
    return file


def assert_undisturbed(folder, tmp_path):
    make(tmp_path / "undisturbed")
    for name in FILES:
        assert (folder / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()


def test_it_goes_on_and_ends_with_the_same_bytes(stopped, tmp_path, capsys):
    assert not (tmp_path / "out" / FILES[0]).exists()
    make(tmp_path / "out")
    assert "going on after step" in capsys.readouterr().err
    assert not list(stopped.parent.iterdir()), "a finished pretraining leaves no checkpoint"
    assert_undisturbed(tmp_path / "out", tmp_path)


def test_another_recipe_starts_anew_beside_it(stopped, tmp_path, capsys):
    make(tmp_path / "out", seed=1)
    assert "going on" not in capsys.readouterr().err
    assert list(stopped.parent.iterdir()) == [stopped]


def rewritten(file, change):
    """The checkpoint with altered facts, which are true of its tensors otherwise."""
    with safetensors.safe_open(file, "pt") as stored:
        facts = stored.metadata()
    made_for = json.loads(facts["made_for"])
    change(facts, made_for)
    save_file(load_file(file), file, {**facts, "made_for": json.dumps(made_for)})


def of_another_recipe(facts, made_for):
    made_for["recipe"]["learning_rate"] = 0.5


def of_another_torch(facts, made_for):
    made_for["torch"] = "1.0"


def of_another_format(facts, made_for):
    facts["format"] = "0"


def other_contents(facts, made_for):
    facts["sha256"] = "0" * 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (of_another_recipe, "recipe.learning_rate is 0.5 in it, but 0.002 here"),
        (of_another_torch, re.escape(f"torch is '1.0' in it, but '{torch.__version__}' here")),
        (of_another_format, "has format 0, but this version reads format 1"),
        (other_contents, "is damaged .other contents than were written."),
    ],
)
def test_what_was_made_for_something_else_is_refused(stopped, tmp_path, change, message):
    rewritten(stopped, change)
    before = stopped.read_bytes()
    with pytest.raises(ValueError, match=message) as refusal:
        make(tmp_path / "out")
    assert "delete it to start anew" in str(refusal.value) and "\n" not in str(refusal.value)
    assert stopped.read_bytes() == before, "refused, not removed"


def test_a_truncated_checkpoint_is_named(stopped, tmp_path):
    stopped.write_bytes(stopped.read_bytes()[:-7])
    with pytest.raises(ValueError, match="is damaged .*delete it to start anew"):
        make(tmp_path / "out")
    stopped.unlink()
    make(tmp_path / "out")
    assert_undisturbed(tmp_path / "out", tmp_path)


def test_a_pretraining_that_fails_by_itself_leaves_no_checkpoint(stopped, tmp_path):
    """The weights of the checkpoint are not numbers: its loss is not either."""
    with safetensors.safe_open(stopped, "pt") as stored:
        facts = stored.metadata()
    tensors = load_file(stopped)
    tensors["model.head.bias"][:] = float("nan")
    save_file(tensors, stopped, {**facts, "sha256": weights_sha256(tensors)})
    with pytest.raises(FloatingPointError, match="the loss is nan at step"):
        make(tmp_path / "out")
    assert not list(stopped.parent.iterdir())


@pytest.mark.slow
def test_the_command_stops_with_the_exit_code_of_the_signal_and_goes_on(tmp_path):
    """Told to end, then interrupted after it was taken up again."""
    raw = yaml.safe_load((ROOT / "config/config.yaml").read_text())
    raw["backbones"] = {"tiny": {"source": "pretrain", **OPTIONS, "epochs": 12}}
    raw |= {"backbone": "tiny", "checkpoint_seconds": 0}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(raw))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FEDSDG_STORE": str(tmp_path / "store")}

    def command(*more):
        return subprocess.Popen(
            [sys.executable, "-m", "fedsdg", "pretrain", "--config", "config.yaml",
             "--backbone", "tiny", "--output", "out/tiny.safetensors", *more],
            cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def saved():
        """Another with every checkpoint."""
        files = (tmp_path / "store").glob("checkpoints/backbone~*")
        return [(file.stat().st_ino, file.stat().st_mtime_ns) for file in files]

    for again, number in enumerate((signal.SIGTERM, signal.SIGINT)):
        before, process = saved(), command()
        while saved() == before:
            assert process.poll() is None
            time.sleep(0.001)
        process.send_signal(number)
        _, error = process.communicate(timeout=120)
        assert process.returncode == 128 + number
        last = error.splitlines()[-1]
        assert last.startswith("fedsdg: stopped; the same command goes on after step")
        assert ("going on after step" in error) == again
    process = command("--set", "checkpoint_seconds=1000")  # it is in no hash
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0 and "going on after step" in error
    pretrain(
        raw["backbones"]["tiny"], tmp_path / "undisturbed" / "tiny.safetensors", progress=False
    )
    for name in FILES:
        assert (tmp_path / "out" / name).read_bytes() == (
            tmp_path / "undisturbed" / name
        ).read_bytes()


@pytest.mark.slow
def test_killed_at_twenty_moments_and_on_a_full_disk_the_bytes_are_the_same(tmp_path):
    script = Path(__file__).with_name("faults_of_pretraining.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert report["kills"] == 20 and report["kills_within_a_write"] >= 4
    # Who is killed before the first checkpoint, or before it has read one, does not say so.
    assert report["resumptions"] >= 8 and report["finished"] >= 1
    assert report["different"] == []
    assert report["full_disk"] == {
        "failed": True,
        "sentences": 1,
        "half_written": False,
        "intact": True,
        "failed_again": False,
        "different": [],
    }
