"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from torch import Tensor

from fedsdg.federation.optimisers.optimiser import RowOptimiser, descend
from fedsdg.parts import Range, part


@part
class Sgd(RowOptimiser):
    """θ ← θ − η v with v ← μ v + g, or, with Nesterov's momentum, θ ← θ − η (g + μ v).

    Weight decay λ adds λ θ to g first (Sutskever et al. 2013 in the form of PyTorch). Without
    momentum Nesterov's changes nothing.
    """

    takes_unequal: ClassVar[bool] = True

    momentum: Annotated[float, Range(0, 0.999999)] = 0.0
    "μ of v ← μ v + g"
    nesterov: bool = False
    "a step along g + μ v in place of v; without momentum it changes nothing"
    weight_decay: Annotated[float, Range(0, 1e3)] = 0.0
    "λ, added to the gradient as λ θ"

    @property
    def memory(self) -> tuple[str, ...]:
        return ("velocity",) if self.momentum else ()

    def move(
        self,
        parameters: Tensor,
        gradients: Tensor,
        rate: Tensor | float,
        memory: Mapping[str, Tensor],
        step: int | Tensor,
    ) -> None:
        if self.weight_decay:
            gradients = gradients.add(parameters, alpha=self.weight_decay)
        direction = gradients
        if self.momentum:
            direction = memory["velocity"].mul_(self.momentum).add_(gradients)
            if self.nesterov:
                direction = gradients.add(direction, alpha=self.momentum)
        descend(parameters, direction, rate)
