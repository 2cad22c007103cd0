"""Roots and gates whose last bits no processor changes, where the compiled pass trains.

PyTorch computes both with what the processor has: MKL's square root of float32 is off in the last
bit of 0.7 % of all numbers with AVX-512 and of none with AVX2. Runs by PyTorch keep that, for their
records were made so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import torch
from torch import Tensor

_exact = ContextVar("exact", default=False)


@contextmanager
def exact(wanted: bool = True) -> Iterator[None]:
    """Within, ``root`` and ``sigmoid`` on a CPU are the same on every processor, if ``wanted``."""
    before = _exact.set(wanted)
    try:
        yield
    finally:
        _exact.reset(before)


def root(x: Tensor) -> Tensor:
    """√x of every entry; within ``exact`` rounded as IEEE 754 demands it."""
    return torch.from_numpy(np.sqrt(x.numpy())) if _exact.get() else x.sqrt()


def sigmoid(x: Tensor) -> Tensor:
    """σ(x) of every entry; within ``exact`` that of float64, rounded once."""
    return x.double().sigmoid().to(x.dtype) if _exact.get() else x.sigmoid()
