"""Settings of torch for the length of a run: threads, and sums in a fixed order on a GPU."""

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.backends import cuda, cudnn

from fedsdg.experiment.workers import WORKSPACE


@contextlib.contextmanager
def repeatable(
    device: torch.device | str, *, threads: int | None = None, tf32: bool = False
) -> Iterator[None]:
    """Let the same computation on a GPU give the same bits; on a CPU only set the threads.

    An operation that torch knows no fixed order for raises ``RuntimeError``. Attention by cuDNN is
    left out: its backward pass has none, and it plans anew for every shape of batch.

    Args:
        device: The device that computes.
        threads: With how many torch computes; None: with as many as before.
        tf32: Round the factors of products and convolutions in float32 to 11 bits; else they keep
            all 24.
    """
    fixed = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    with contextlib.ExitStack() as afterwards:
        afterwards.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(threads or torch.get_num_threads())
        if torch.device(device).type == "cpu":
            yield
            return
        os.environ.update({name: os.environ.get(name, value) for name, value in WORKSPACE.items()})
        torch.cuda.init()
        torch.cuda.reset_peak_memory_stats(device)  # An earlier run may have taken more.
        afterwards.callback(torch.use_deterministic_algorithms, fixed, warn_only=warns)
        afterwards.callback(cuda.enable_cudnn_sdp, cuda.cudnn_sdp_enabled())
        torch.use_deterministic_algorithms(True)
        cuda.enable_cudnn_sdp(False)
        for module, name, value in (
            (cudnn, "deterministic", True),
            (cudnn, "benchmark", False),
            (cudnn, "allow_tf32", tf32),
            (cuda.matmul, "allow_tf32", tf32),
            # Memory that is written anyway need not be filled before.
            (torch.utils.deterministic, "fill_uninitialized_memory", False),
        ):
            afterwards.callback(_set, module, name, getattr(module, name))
            _set(module, name, value)
        yield


def _set(module: Any, name: str, value: bool) -> None:
    # Newer names of some settings are not in all versions that are supported.
    with warnings.catch_warnings(action="ignore"):
        setattr(module, name, value)


def gpu_facts(device: torch.device) -> dict[str, Any]:
    """Return the GPU that computed a run and the memory that it took; nothing for a CPU."""
    if device.type == "cpu":
        return {}
    peak = torch.cuda.max_memory_allocated(device) / 1024**2
    return {"gpu": torch.cuda.get_device_name(device), "gpu_peak_mb": peak}
