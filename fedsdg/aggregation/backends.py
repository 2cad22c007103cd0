"""Which code does the arithmetic on the rows: the plain torch reference or compiled kernels.

The one place where this is decided. By itself the choice is "auto": kernels (numba, on the CPU)
where they have something to gain, the reference elsewhere; so small problems never wait for a
compiler and give the same bits as ever. `FEDSDG_AGGREGATION_BACKEND` in the environment, or
`backend(...)` around a call, force one.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec

import torch

BACKENDS = ("auto", "torch", "numba")
VARIABLE = "FEDSDG_AGGREGATION_BACKEND"
AUTO_NUMBERS = 1_000_000
"""With "auto", kernels take rows [M, d] of at least this many numbers."""
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""That kernels read."""

_forced: ContextVar[str | None] = ContextVar("forced aggregation backend", default=None)


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Force a backend within the block: "torch", "numba", or "auto" for the choice by size.

    "numba" concerns rows that have kernels (see `has_kernels`); others take the reference still.

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


def backend_for(numbers: int) -> str:
    """What "auto" comes to for so many numbers in all, which are then looked at part by part."""
    chosen = chosen_backend()
    if chosen != "auto":
        return chosen
    return "torch" if numbers < AUTO_NUMBERS else "numba"


def use_kernels(rows: torch.Tensor) -> bool:
    """Whether kernels take these rows [M, d]."""
    return has_kernels(rows) and backend_for(rows.numel()) != "torch"


def has_kernels(rows: torch.Tensor) -> bool:
    """Whether there are kernels for such rows: on the CPU, a row's numbers side by side in memory,
    at least one. (The rows themselves may be apart, or even the same.)"""
    return (
        rows.device.type == "cpu"
        and rows.dtype in DTYPES
        and rows.numel() > 0
        and (rows.shape[1] == 1 or rows.stride(1) == 1)
        and find_spec("numba") is not None
    )


def _known(name: str, what: str) -> str:
    if name not in BACKENDS:
        raise ValueError(f"{what}={name!r}: use one of {', '.join(BACKENDS)}")
    return name
