"""Adam."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsdg.federation.optimisers.optimiser import RowOptimiser, descend
from fedsdg.models.fast import adam
from fedsdg.models.rounding import independent
from fedsdg.parts import Range, part


@part
class Adam(RowOptimiser):
    """θ ← θ − η m̂ / (√v̂ + ε), without weight decay (Kingma & Ba 2015).

    m ← β₁ m + (1 − β₁) g and v ← β₂ v + (1 − β₂) g², both 0 at the beginning; after t steps
    m̂ = m / (1 − β₁ᵗ) and v̂ = v / (1 − β₂ᵗ).
    """

    takes_unequal: ClassVar[bool] = True

    beta1: Annotated[float, Range(0, 0.999999)] = 0.9
    "β₁, share of the past in m"
    beta2: Annotated[float, Range(0, 0.999999)] = 0.999
    "β₂, share of the past in v"
    epsilon: Annotated[float, Range(1e-12, 1)] = 1e-8
    "ε beside √v̂"

    @property
    def memory(self) -> tuple[str, ...]:
        return ("mean", "square")

    def move(
        self,
        parameters: Tensor,
        gradients: Tensor,
        rate: Tensor | float,
        memory: Mapping[str, Tensor],
        step: int | Tensor,
    ) -> None:
        beta1, beta2 = self.beta1, self.beta2
        # m̂ / (√v̂ + ε) = m · (root / (1 − β1ᵗ)) / (√v + ε · root) with root = √(1 − β2ᵗ)
        if independent() and isinstance(step, int):
            root_now = math.sqrt(1 - beta2**step)
            scaled = np.float32(self.epsilon) * np.float32(root_now)
            factors = (1 - beta1, beta2, 1 - beta2, scaled, root_now / (1 - beta1**step))
            rates = torch.as_tensor(rate, dtype=parameters.dtype).expand(parameters.shape[1])
            rows = (parameters, gradients, memory["mean"], memory["square"], rates.contiguous())
            adam.step(*(row.numpy() for row in rows), *(np.float32(one) for one in factors))
            return
        # Worked out in float64 where the number of steps is: of one for all rows on the host, so
        # that it is no work for the device, and travels there with the launch that it is for.
        counted = torch.as_tensor(step, dtype=torch.float64)
        root = (1 - beta2**counted).sqrt()
        size = (root / (1 - beta1**counted)).to(parameters.dtype)
        epsilon = self.epsilon * root.to(parameters.dtype)
        mean = memory["mean"].lerp_(gradients, 1 - beta1)
        square = memory["square"].mul_(beta2).addcmul_(gradients, gradients, value=1 - beta2)
        move = square.sqrt().add_(epsilon).reciprocal_().mul_(mean).mul_(size)
        descend(parameters, move, rate)
