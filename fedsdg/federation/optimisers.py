"""Optimisers over rows: every client has its own state and its own step count.

PyTorch's Adam keeps one step count for a whole tensor and moves rows whose gradient is zero;
a cohort of clients of different sizes needs neither. Memory: Adam keeps 2 numbers a parameter.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

#: What Adam remembers of a client: both moments of every parameter, and its steps so far.
MEAN, SQUARE, STEPS = "private.mean", "private.square", "private.steps"
MOMENTS = (MEAN, SQUARE, STEPS)


class Optimiser(Protocol):
    """Moves the first ``n`` rows of the matrix it was made for by one step."""

    def step(self, parameters: Tensor, gradients: Tensor) -> None:
        """Update ``parameters`` [n, d] in place from ``gradients`` [n, d]."""

    def keep(self, rows: Tensor) -> None:
        """Go on with the clients in the rows ``rows`` (int64) alone, in that order."""


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

    def keep(self, rows: Tensor) -> None:
        """Nothing is remembered of any client."""


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
        self._steps = [0] * parameters.shape[0]

    def step(self, parameters: Tensor, gradients: Tensor) -> None:
        """Move the given rows."""
        n = parameters.shape[0]
        self._steps[:n] = [count + 1 for count in self._steps[:n]]
        begin = 0
        # Rows with equally many steps go together; in a cohort those that train all have.
        for count, group in itertools.groupby(self._steps[:n]):
            rows = slice(begin, begin + len(list(group)))
            self._move(parameters[rows], gradients[rows], rows, count)
            begin = rows.stop

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows alone; each takes its moments and its count with it."""
        self._mean, self._square = self._mean[rows], self._square[rows]
        self._steps = [self._steps[row] for row in rows.tolist()]

    def moments(self) -> dict[str, Tensor]:
        """What is remembered of every row, by ``MOMENTS``: [M, d], [M, d] and [M, 1]."""
        steps = torch.tensor(self._steps, dtype=self._mean.dtype, device=self._mean.device)
        return {MEAN: self._mean, SQUARE: self._square, STEPS: steps[:, None]}

    def resume(self, moments: Mapping[str, Tensor]) -> None:
        """Go on from what ``moments`` returned; zeros are a fresh start."""
        self._mean, self._square = moments[MEAN].clone(), moments[SQUARE].clone()
        self._steps = [int(count) for count in moments[STEPS].flatten().tolist()]

    def _move(self, parameters: Tensor, gradients: Tensor, rows: slice, count: int) -> None:
        """The ``count``-th step of these rows."""
        beta1, beta2 = self._betas
        mean = self._mean[rows].lerp_(gradients, 1 - beta1)
        square = self._square[rows].mul_(beta2).addcmul_(gradients, gradients, value=1 - beta2)
        # Worked out in float64 and on the host, so that no number travels to the device.
        counted = torch.tensor(count, dtype=torch.float64)
        root = (1 - beta2**counted).sqrt()
        size = (root / (1 - beta1**counted)).to(parameters.dtype)
        root = root.to(parameters.dtype)
        # m̂ / (√v̂ + ε) = m · (root / (1 − β1ᵗ)) / (√v + ε · root)
        move = square.sqrt().add_(self._epsilon * root).reciprocal_().mul_(mean).mul_(size)
        if isinstance(self._rate, float):
            parameters.add_(move, alpha=-self._rate)
        else:
            parameters.addcmul_(move, self._rate, value=-1)


OPTIMISERS = {"adam": Adam, "sgd": Sgd}
