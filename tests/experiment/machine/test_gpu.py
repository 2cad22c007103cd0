"""What is asked of a GPU, and what is said of it; on machines that have none."""

import os
import subprocess
from types import SimpleNamespace

import pytest
import torch

from fedsdg import files
from fedsdg.experiment.machine.devices import WORKSPACE
from fedsdg.experiment.machine.gpu import gpu_facts, repeatable


def settings():
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    return {
        "fixed": torch.are_deterministic_algorithms_enabled(),
        "warns only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fills": torch.utils.deterministic.fill_uninitialized_memory,
        "convolutions fixed": cudnn.deterministic,
        "tries which is fastest": cudnn.benchmark,
        "attention by cuDNN": cuda.cudnn_sdp_enabled(),
        "products": cuda.matmul.allow_tf32,
        "convolutions": cudnn.allow_tf32,
    }


@pytest.mark.parametrize("tf32", [False, True])
def test_a_gpu_is_asked_for_fixed_orders_and_full_precision(tf32, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = settings()
    with pytest.raises(KeyError), repeatable("cuda", tf32=tf32):
        assert settings() == {
            "fixed": True,
            "warns only": False,
            "fills": False,
            "convolutions fixed": True,
            "tries which is fastest": False,
            "attention by cuDNN": False,
            "products": tf32,
            "convolutions": tf32,
        }
        assert WORKSPACE.items() <= os.environ.items()
        raise KeyError
    assert settings() == before
    with repeatable("cpu"):
        assert settings() == before


def test_provenance_names_the_gpu(monkeypatch):
    card = SimpleNamespace(name="NVIDIA H100", major=9, minor=0, total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 << 20)
    found = gpu_facts("cuda")
    assert (found["gpu"], found["gpu_capability"], found["gpu_peak_mb"]) == (
        "NVIDIA H100",
        "9.0",
        3,
    )
    assert {"gpu_driver", "cuda", "cudnn", "triton"} < found.keys()
    assert gpu_facts("cpu") == {}


def test_without_a_history_the_commit_is_taken_from_the_environment(monkeypatch):
    monkeypatch.setenv("FEDSDG_COMMIT", "abc")
    asked = subprocess.run

    def without_git(command, **options):
        if command[0] == "git":
            raise FileNotFoundError
        return asked(command, **options)

    monkeypatch.setattr(subprocess, "run", without_git)
    found = files.provenance()
    assert (found["commit"], found["dirty"]) == ("abc", None)
