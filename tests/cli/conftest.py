"""A tiny experiment that is run once, by the commands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fedsdg.cli import main
from fedsdg.experiment import workers
from tests.imported import Context

TINY = {
    "experiment": "tiny",
    "skews": ["iid"],
    "seeds": [0],
    "methods": ["fedsdg", "fedavg"],
    "backbone": "tiny",
    "backbones": {
        "tiny": {"source": "pretrain", "data": "letters", "image_size": 8, "patch_size": 4}
        | {"channels": 1, "dim": 16, "depth": 2, "heads": 2, "images": 200, "held_out": 50}
        | {"epochs": 1, "threads": 1}
    },
    "federation": {"clients": 6, "clients_per_round": 2, "rounds": 4, "evaluate_every": 2},
    "search": {
        "seeds": [100],
        "trials": 2,
        "space": {"fedavg": {"eta_g": [0.001, 0.1, "log"]}},
    },
    "tables": ["main"],
    "figures": ["partition"],
}
"""The keys of a config that is laid over the default."""


@pytest.fixture(scope="session")
def experiment(tmp_path_factory):
    """The folder in which `fedsdg grid` has done the tiny experiment, and `run` kept models."""
    folder = tmp_path_factory.mktemp("experiment")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("FEDSDG_STORE", "FEDSDG_CONFIG"):
            patch.delenv(name, raising=False)
        patch.setattr(workers, "get_context", lambda _: Context())  # Workers start at once.
        Path("tiny.yaml").write_text(yaml.safe_dump(TINY))
        assert main(["grid", "tiny.yaml"]) == 0
        kept = ["--set", "training.save=last", "federation.rounds=2", "--output", "kept"]
        assert main(["run", "--config", "tiny.yaml", "--method", "fedsdg", *kept]) == 0
    return folder


@pytest.fixture
def here(experiment, empty, monkeypatch):
    """The folder of the experiment, as the working directory."""
    monkeypatch.chdir(experiment)
    monkeypatch.setattr(workers, "get_context", lambda _: Context())
    return experiment


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """An empty folder, as the working directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("FEDSDG_STORE", "FEDSDG_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def said(capsys):
    """A function that calls a command which succeeds, and returns what it prints."""

    def call(*words: object) -> str:
        code = main([str(word) for word in words])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return printed.out

    return call


@pytest.fixture
def told(said):
    """A function that calls a command with --json, and returns what it prints."""
    return lambda *words: json.loads(said(*words, "--json"))


@pytest.fixture
def refused(capsys):
    """A function that calls a command with bad input, and returns its one sentence."""

    def call(*words: object) -> str:
        assert main([str(word) for word in words]) == 2
        *remarks, sentence = capsys.readouterr().err.splitlines()
        assert not [line for line in remarks if "error" in line]
        assert sentence.startswith("fedsdg: error: ")
        return sentence

    return call


def python(*words: object, env: dict[str, str] | None = None, **options: object):
    """Start Python in a process of its own, with a terminal's 80 columns."""
    root = str(Path(__file__).parents[2])
    whole = {**os.environ, "PYTHONPATH": root, "COLUMNS": "80", **(env or {})}
    return subprocess.Popen([sys.executable, *words], env=whole, text=True, **options)


def outcome(*words: object, **options: object) -> tuple[int, str, str]:
    """Run Python in a process of its own; its exit code, output and errors."""
    with python(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        printed = process.communicate()
    return (process.returncode, *printed)
