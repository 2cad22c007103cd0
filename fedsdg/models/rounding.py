"""Square roots and sigmoids with the same bits on every processor.

PyTorch's float32 functions depend on the instructions: MKL's square root is rounded correctly with
AVX2, but not always with AVX-512.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def root(x: Tensor) -> Tensor:
    """Return √x of every entry, on a CPU rounded correctly (IEEE 754); not differentiable there."""
    return torch.from_numpy(np.sqrt(x.numpy())) if x.device.type == "cpu" else x.sqrt()


def sigmoid(x: Tensor) -> Tensor:
    """Return σ(x) of every entry, computed in float64 and rounded once to the type of `x`."""
    return x.double().sigmoid().to(x.dtype)
