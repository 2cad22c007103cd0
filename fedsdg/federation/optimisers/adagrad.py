"""Adagrad."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from torch import Tensor

from fedsdg.federation.optimisers.optimiser import RowOptimiser, descend
from fedsdg.models.rounding import root
from fedsdg.parts import Range, part


@part
class Adagrad(RowOptimiser):
    """θ ← θ − η g / (√s + ε) with s ← s + g² (Duchi et al. 2011)."""

    takes_unequal: ClassVar[bool] = True

    epsilon: Annotated[float, Range(1e-12, 1)] = 1e-10
    "ε beside √Σ g²"

    @property
    def memory(self) -> tuple[str, ...]:
        return ("squares",)

    def move(
        self,
        parameters: Tensor,
        gradients: Tensor,
        rate: Tensor | float,
        memory: Mapping[str, Tensor],
        step: int | Tensor,
    ) -> None:
        squares = memory["squares"].addcmul_(gradients, gradients)
        descend(parameters, gradients / root(squares).add_(self.epsilon), rate)
