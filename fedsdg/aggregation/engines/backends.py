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


def backend_for(numbers: int, device: torch.device) -> str:
    """What "auto" comes to for so many numbers in all, which are then looked at part by part."""
    chosen = chosen_backend()
    if chosen != "auto":
        return chosen
    if numbers < AUTO_NUMBERS:
        return "torch"
    return "triton" if device.type == "cuda" else "numba"


def kernels_for(rows: torch.Tensor) -> str | None:
    """The kernels that take these rows [M, d]: "numba" (on the CPU), "triton", or None.

    A row's numbers must lie side by side in memory, at least one. (The rows themselves may be
    apart, or even the same.)
    """
    chosen = backend_for(rows.numel(), rows.device)
    if chosen == "triton" and rows.device.type != "cuda":
        _check_interpreter(rows.device)
    fit = {
        "torch": False,
        "numba": rows.device.type == "cpu",
        "triton": len(rows) <= MOST_TRITON_ROWS,
    }
    if fit[chosen] and _readable(rows) and find_spec(chosen) is not None:
        return chosen
    return None


def has_addresses(tensor: torch.Tensor) -> bool:
    """Whether the kernels of "numba" can read a tensor [n] where it lies."""
    return (
        tensor.device.type == "cpu" and _readable(tensor[None]) and find_spec("numba") is not None
    )


def has_tables(device: torch.device) -> bool:
    """Whether the kernels of "triton", which is chosen, can read tensors there through a table.

    RuntimeError where they have nothing to run on.
    """
    if device.type != "cuda":
        _check_interpreter(device)
    return find_spec("triton") is not None


def _readable(rows: torch.Tensor) -> bool:
    side_by_side = rows.shape[1] == 1 or rows.stride(1) == 1
    return rows.dtype in DTYPES and rows.numel() > 0 and side_by_side


def _check_interpreter(device: torch.device) -> None:
    if find_spec("triton") is None:
        raise RuntimeError(
            "backend 'triton': triton is not installed; on Linux, pip install triton"
        )
    from fedsdg.aggregation.engines.kernels.cuda.launching import is_interpreted

    if device.type != "cpu" or not is_interpreted():
        raise RuntimeError(
            f"backend 'triton': the updates are on the device {device}, not on a CUDA device; move"
            " them there, or on the CPU set TRITON_INTERPRET=1 before Python starts (slow)"
        )


def _known(name: str, what: str) -> str:
    if name not in BACKENDS:
        raise ValueError(f"{what}={name!r}: use one of {', '.join(BACKENDS)}")
    return name
