"""A federation of a second, and a grid of it that is run once."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from fedsdg.experiment.config import Config
from fedsdg.experiment.config_files import load_config
from fedsdg.experiment import workers
from tests.imported import Context

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config" / "config.yaml"
TINY = {
    "experiment": "tiny",
    "skews": ["dirichlet~1.0", "iid"],
    "seeds": [0, 1],
    "methods": ["fedsdg", "fedavg"],
    "backbone": "tiny",
    "backbones": {
        "tiny": {"source": "pretrain", "data": "letters", "image_size": 8, "patch_size": 4}
        | {"channels": 1, "dim": 16, "depth": 2, "heads": 2, "images": 200, "held_out": 50}
        | {"epochs": 1, "threads": 1}
    },
    "federation": {"clients": 6, "clients_per_round": 2, "rounds": 4, "evaluate_every": 2},
    "search": {
        "seeds": [100, 101, 102],
        "trials": 5,
        "skews": ["iid"],
        "space": {
            "fedsdg": {"eta_g": [0.001, 0.1, "log"], "eta_p": [0.001, 0.1, "log"]},
            "fedavg": {"eta_g": [0.001, 0.1, "log"]},
        },
    },
}
"""The keys of a config that is laid over the default."""


def tiny(*settings: str) -> Config:
    """Return the tiny config with settings as for `--set`, its file below the working directory."""
    Path("tiny.yaml").write_text(yaml.safe_dump(TINY))
    return load_config([CONFIG, Path("tiny.yaml")], list(settings))


def python(script: Path, **options: object) -> subprocess.Popen:
    """Start Python with a script, in the script's folder."""
    return subprocess.Popen(
        [sys.executable, str(script)],
        cwd=script.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        **options,
    )


def ended(process: int) -> bool:
    """Whether a process has ended, or is a zombie that nobody has waited for."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to work in, with a store of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSDG_STORE", raising=False)
    monkeypatch.delenv("FEDSDG_CONFIG", raising=False)
    return tmp_path


@pytest.fixture
def forked(monkeypatch):
    """Workers start at once."""
    monkeypatch.setattr(workers, "get_context", lambda _: Context())
