"""Optimisers over rows: every client has its own state and its own step count.

PyTorch's Adam keeps one step count for a whole tensor and moves rows whose gradient is zero;
a cohort of clients of different sizes needs neither. Memory: Adam keeps 2 numbers a parameter.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Optimiser(Protocol):
    """Moves the first ``n`` rows of the matrix it was made for by one step."""

    def step(self, parameters: Tensor, gradients: Tensor) -> None:
        """Update ``parameters`` [n, d] in place from ``gradients`` [n, d]."""


class Sgd:
    """θ ← θ − η g, with η per column (or one for all)."""

    def __init__(self, parameters: Tensor, rate: Tensor | float) -> None:
        self._rate = rate

    def step(self, parameters: Tensor, gradients: Tensor) -> None:
        """Move the given rows."""
        if isinstance(self._rate, float):
            parameters.add_(gradients, alpha=-self._rate)
        else:
            parameters.addcmul_(gradients, self._rate, value=-1)


class Adam:
    """Adam (Kingma & Ba 2015) without weight decay: θ ← θ − η m̂ / (√v̂ + ε).

    ``parameters`` [M, d] gives shape and dtype; ``rate`` is η for all columns, or per column [d].
    Rows are stepped as leading blocks: ``step`` with n rows moves the first n clients and counts
    a step for each of them alone.
    """

    def __init__(
        self,
        parameters: Tensor,
        rate: Tensor | float,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        self._rate = rate
        self._betas = betas
        self._epsilon = epsilon
        self._mean = torch.zeros_like(parameters)
        self._square = torch.zeros_like(parameters)
        self._steps = torch.zeros(parameters.shape[0], 1, dtype=torch.float64)

    def step(self, parameters: Tensor, gradients: Tensor) -> None:
        """Move the given rows."""
        n = parameters.shape[0]
        beta1, beta2 = self._betas
        self._steps[:n] += 1
        steps = self._steps[:n]
        mean = self._mean[:n].lerp_(gradients, 1 - beta1)
        square = self._square[:n].mul_(beta2).addcmul_(gradients, gradients, value=1 - beta2)
        # The corrections are worked out in float64 and applied per row.
        root = (1 - beta2**steps).sqrt()
        size = (root / (1 - beta1**steps)).to(parameters)
        root = root.to(parameters)
        # m̂ / (√v̂ + ε) = m · (root / (1 − β1ᵗ)) / (√v + ε · root)
        move = square.sqrt().add_(self._epsilon * root).reciprocal_().mul_(mean).mul_(size)
        if isinstance(self._rate, float):
            parameters.add_(move, alpha=-self._rate)
        else:
            parameters.addcmul_(move, self._rate, value=-1)


OPTIMISERS = {"adam": Adam, "sgd": Sgd}
