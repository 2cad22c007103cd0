"""A step of Adam in one pass over its numbers, with the same bytes on every processor."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsdg.compiling import compiled_with
from fedsdg.models.fast import vectors
from fedsdg.models.fast.vectors import fused_number


def _step(
    parameters: Any, gradients: Any, mean: Any, square: Any, rate: Any, add_mean: Any,
    keep_square: Any, add_square: Any, epsilon: Any, size: Any,
) -> None:  # fmt: skip
    """θ ← θ − η · size · m / (√v + ε) with m ← m + a (g − m) and v ← b v + c g², in place.

    It rounds where PyTorch's operations do.

    Args:
        parameters, gradients, mean, square: θ, g, m and v [n, d].
        rate: η [d].
        add_mean, keep_square, add_square: a, b and c.
        epsilon: ε.
        size: what the step is multiplied by.
    """
    one = np.float32(1)
    for i in range(len(parameters)):
        theta, g, m, v = parameters[i], gradients[i], mean[i], square[i]
        for j in range(len(rate)):
            m[j] = fused_number(add_mean, g[j] - m[j], m[j])
            v[j] = fused_number(add_square * g[j], g[j], v[j] * keep_square)
            move = one / (np.sqrt(v[j]) + epsilon) * m[j] * size
            theta[j] = fused_number(-move, rate[j], theta[j])


step = compiled_with(_step, (vectors,))
