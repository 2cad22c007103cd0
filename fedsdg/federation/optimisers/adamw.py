"""Adam with weight decay apart from the gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from torch import Tensor

from fedsdg.federation.optimisers.adam import Adam
from fedsdg.parts import Range, part


@part
class AdamW(Adam):
    """Adam after θ ← (1 − η λ) θ (Loshchilov & Hutter 2019)."""

    weight_decay: Annotated[float, Range(0, 1e3)] = 0.01
    "λ of θ ← (1 − η λ) θ, before each step"

    def move(
        self,
        parameters: Tensor,
        gradients: Tensor,
        rate: Tensor | float,
        memory: Mapping[str, Tensor],
        step: int | Tensor,
    ) -> None:
        if self.weight_decay:
            parameters.mul_(1 - rate * self.weight_decay)
        super().move(parameters, gradients, rate, memory, step)
