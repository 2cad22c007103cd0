"""A step of Adam in one pass over its numbers, with the same bits on every processor."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsdg.compiling import compiled_with
from fedsdg.models.fast import vectors
from fedsdg.models.fast.vectors import fused_number


def _adam_step(
    parameters: Any, gradients: Any, mean: Any, square: Any, rate: Any, add_mean: Any,
    keep_square: Any, add_square: Any, epsilon: Any, size: Any,
) -> None:  # fmt: skip
    """θ ← θ − η · size · m / (√v + ε) with m ← m + a (g − m) and v ← b v + c g², in place.

    Rounded where PyTorch's operations are rounded.

    Args:
        parameters: θ [n, d], float32.
        gradients: g [n, d].
        mean: m [n, d].
        square: v [n, d].
        rate: η [d].
        add_mean: a, a float32 number as the following ones.
        keep_square: b.
        add_square: c.
        epsilon: ε.
        size: factor of the step.
    """
    one = np.float32(1)
    for i in range(len(parameters)):
        theta, g, m, v = parameters[i], gradients[i], mean[i], square[i]
        for j in range(len(rate)):
            m[j] = fused_number(add_mean, g[j] - m[j], m[j])
            v[j] = fused_number(add_square * g[j], g[j], v[j] * keep_square)
            move = one / (np.sqrt(v[j]) + epsilon) * m[j] * size
            theta[j] = fused_number(-move, rate[j], theta[j])


adam_step = compiled_with(_adam_step, (vectors,))
