"""What every optimiser has: it moves rows that have taken equally many steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor


class RowOptimiser:
    """Moves rows that have taken equally many steps, each by its own gradient."""

    #: Whether ``move`` takes rows with unequal numbers of steps too, as ``step`` [n, 1] float64.
    takes_unequal: ClassVar[bool] = False

    @property
    def memory(self) -> tuple[str, ...]:
        """Names of the numbers that are remembered of every parameter, 0 at the beginning."""
        return ()

    def move(
        self,
        parameters: Tensor,
        gradients: Tensor,
        rate: Tensor | float,
        memory: Mapping[str, Tensor],
        step: int | Tensor,
    ) -> None:
        """The ``step``-th step (from 1) of ``parameters`` [n, d] by ``gradients`` [n, d], in place.

        ``rate`` is η for all columns, or per column [d]; ``memory[name]`` [n, d] is changed in
        place; the gradients stay as they are.
        """
        raise NotImplementedError


def descend(parameters: Tensor, direction: Tensor, rate: Tensor | float) -> None:
    """θ ← θ − η · direction, in place."""
    if isinstance(rate, float):
        parameters.add_(direction, alpha=-rate)
    else:
        parameters.addcmul_(direction, rate, value=-1)
