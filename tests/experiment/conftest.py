"""A federation of a second, and a grid of it that is run once."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from fedsdg.config.config import Config
from fedsdg.config.layers import load
from fedsdg.experiment import workers
from fedsdg.experiment.backbones import backbone
from tests.imported import Context

ROOT = Path(__file__).parents[2]
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
    return load(["tiny.yaml"], settings)


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


@pytest.fixture(scope="session")
def made_backbone(tmp_path_factory):
    """The folder of the tiny backbone, pretrained once."""
    folder = tmp_path_factory.mktemp("backbones")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("FEDSDG_STORE", raising=False)
        patch.delenv("FEDSDG_CONFIG", raising=False)
        backbone("tiny", tiny().backbones["tiny"], folder / "tiny.safetensors")
    return folder


@pytest.fixture
def folder(tmp_path, monkeypatch, made_backbone):
    """A folder to work in, with a backbone and a store of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSDG_STORE", raising=False)
    monkeypatch.delenv("FEDSDG_CONFIG", raising=False)
    place_backbone(made_backbone, tmp_path)
    return tmp_path


def place_backbone(made: Path, folder: Path) -> None:
    """Put the tiny backbone where the runs of a folder look for it."""
    place = folder / "results" / "backbones"
    place.mkdir(parents=True)
    for name in ("tiny.safetensors", "tiny.json"):
        shutil.copy(made / name, place)


@pytest.fixture
def forked(monkeypatch):
    """Workers start at once."""
    monkeypatch.setattr(workers, "get_context", lambda _: Context())
