"""Square roots and sigmoids that are the same on every processor, for the compiled pass.

PyTorch's depend on the instructions: MKL's float32 square root is rounded correctly with AVX2, but
not always with AVX-512. Runs by PyTorch keep PyTorch's functions, as in their records.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import torch
from torch import Tensor

_chosen = ContextVar("independent", default=False)


@contextmanager
def processor_independent(wanted: bool = True) -> Iterator[None]:
    """Make ``root`` and ``sigmoid`` on a CPU the same on every processor, if ``wanted``."""
    before = _chosen.set(wanted)
    try:
        yield
    finally:
        _chosen.reset(before)


def independent() -> bool:
    """Whether what is computed now has to be the same on every processor."""
    return _chosen.get()


def root(x: Tensor) -> Tensor:
    """√x of every entry; within ``processor_independent`` rounded correctly (IEEE 754)."""
    return torch.from_numpy(np.sqrt(x.numpy())) if independent() else x.sqrt()


def sigmoid(x: Tensor) -> Tensor:
    """σ(x) of every entry; within ``processor_independent`` computed in float64, rounded once."""
    return x.double().sigmoid().to(x.dtype) if independent() else x.sigmoid()
