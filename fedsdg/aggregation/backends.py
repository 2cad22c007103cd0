"""Which code does the arithmetic on the rows: the plain torch reference or compiled kernels.

The one place where this is decided. By itself the choice is "auto": kernels (numba on the CPU,
triton on a GPU) where they have something to gain, the reference elsewhere; so small problems never
wait for a compiler and give the same bits as ever. `FEDSDG_AGGREGATION_BACKEND` in the environment,
or `backend(...)` around a call, force one.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec

import torch

BACKENDS = ("auto", "torch", "numba", "triton")
VARIABLE = "FEDSDG_AGGREGATION_BACKEND"
AUTO_NUMBERS = 1_000_000
"""With "auto", kernels take rows [M, d] of at least this many numbers."""
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""That kernels read."""
MOST_TRITON_ROWS = 1024
"""A program on a GPU holds a number of every row in registers; those of more do not fit."""

_forced: ContextVar[str | None] = ContextVar("forced aggregation backend", default=None)


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Force a backend within the block: "torch", "numba", "triton", or "auto", the choice by size.

    Kernels that are forced concern rows that they take (see `kernels_for`); others take the
    reference still. But triton with nothing to run it on is an error.

    >>> with backend("torch"):
    ...     chosen_backend()
    'torch'
    """
    token = _forced.set(_known(name, "backend"))
    try:
        yield
    finally:
        _forced.reset(token)


def chosen_backend() -> str:
    """The backend asked for: by `backend(...)`, else by the environment, else "auto"."""
    return _forced.get() or _known(os.environ.get(VARIABLE) or "auto", VARIABLE)


def use_kernels(rows: torch.Tensor) -> bool:
    """Whether kernels take these rows [M, d]."""
    return kernels_for(rows) is not None


def kernels_for(rows: torch.Tensor) -> str | None:
    """The kernels that take these rows [M, d]: "numba" (on the CPU), "triton", or None.

    A row's numbers must lie side by side in memory, at least one. (The rows themselves may be
    apart, or even the same.)
    """
    chosen = chosen_backend()
    if chosen == "torch" or (chosen == "auto" and rows.numel() < AUTO_NUMBERS):
        return None
    device = rows.device.type
    if chosen == "auto":
        chosen = "triton" if device == "cuda" else "numba"
    elif chosen == "triton" and device != "cuda":
        _check_interpreter(rows.device)
    fit = len(rows) <= MOST_TRITON_ROWS if chosen == "triton" else device == "cpu"
    if (
        fit
        and rows.dtype in DTYPES
        and rows.numel() > 0
        and (rows.shape[1] == 1 or rows.stride(1) == 1)
        and find_spec(chosen) is not None
    ):
        return chosen
    return None


def _check_interpreter(device: torch.device) -> None:
    if find_spec("triton") is None:
        raise RuntimeError(
            "backend 'triton': triton is not installed; on Linux, pip install triton"
        )
    from fedsdg.aggregation.kernels.cuda.launching import is_interpreted

    if device.type != "cpu" or not is_interpreted():
        raise RuntimeError(
            f"backend 'triton': the updates are on the device {device}, not on a CUDA device; move"
            " them there, or on the CPU set TRITON_INTERPRET=1 before Python starts (slow)"
        )


def _known(name: str, what: str) -> str:
    if name not in BACKENDS:
        raise ValueError(f"{what}={name!r}: use one of {', '.join(BACKENDS)}")
    return name
