"""What a GPU is, and that it adds in a fixed order and in the precision that was asked for."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import torch

from fedsdg.experiment.machine.devices import WORKSPACE


@contextlib.contextmanager
def repeatable(device: torch.device | str, *, tf32: bool = False) -> Iterator[None]:
    """Within the block the same computation on a GPU gives the same bits; on a CPU nothing changes.

    An operation that torch knows no fixed order for raises ``RuntimeError``. Attention by cuDNN is
    left out: its backward pass has none, and it plans anew for every shape of batch. Products and
    convolutions in float32 keep all 24 bits, but with ``tf32`` the factors are rounded to 11.
    """
    if torch.device(device).type == "cpu":
        yield
        return
    os.environ.update({name: os.environ.get(name, value) for name, value in WORKSPACE.items()})
    cuda, cudnn, deterministic = (
        torch.backends.cuda,
        torch.backends.cudnn,
        torch.utils.deterministic,
    )
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        cudnn.deterministic,
        cudnn.benchmark,
        cuda.cudnn_sdp_enabled(),
        *_tf32(),
    )
    try:
        # Memory that is written anyway need not be filled before.
        _set(True, False, False, True, False, False, tf32, tf32)
        yield
    finally:
        _set(*before)


def _tf32() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def _set(
    fixed: bool,
    warn_only: bool,
    fill: bool,
    deterministic: bool,
    benchmark: bool,
    attention: bool,
    products: bool,
    convolutions: bool,
) -> None:
    torch.use_deterministic_algorithms(fixed, warn_only=warn_only)
    torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = benchmark
    torch.backends.cuda.enable_cudnn_sdp(attention)
    with warnings.catch_warnings():
        # Newer names of these are not in all versions that are supported.
        warnings.simplefilter("ignore")
        torch.backends.cuda.matmul.allow_tf32 = products
        torch.backends.cudnn.allow_tf32 = convolutions


def gpu_facts(device: torch.device | str) -> dict[str, Any]:
    """What computed a run, for its provenance: the GPU, its software, the memory taken at most.

    Empty for a CPU.
    """
    if torch.device(device).type == "cpu":
        return {}
    found = torch.cuda.get_device_properties(device)
    triton = None
    with contextlib.suppress(metadata.PackageNotFoundError):
        triton = metadata.version("triton")
    return {
        "gpu": found.name,
        "gpu_capability": f"{found.major}.{found.minor}",
        "gpu_memory_mb": found.total_memory / 1024**2,
        "gpu_peak_mb": torch.cuda.max_memory_allocated(device) / 1024**2,
        "gpu_driver": _driver(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "triton": triton,
    }


def _driver() -> str | None:
    """The version of the driver; None where nobody says."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    question = [command, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(question, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip().partition("\n")[0] or None
