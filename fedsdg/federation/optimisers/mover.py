"""An optimiser at work: what it remembers of every client, and which clients have gone on."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch
from torch import Tensor

from fedsdg.federation.optimisers.optimiser import RowOptimiser

STEPS = "steps"


class Mover:
    """An optimiser at work on the rows of a matrix.

    ``parameters`` [M, d] gives shape and dtype; ``rate`` is η for all columns, or per column [d].
    Rows are stepped as leading blocks: ``step`` with n rows moves the first n clients and counts
    a step for each of them alone.
    """

    def __init__(self, optimiser: RowOptimiser, parameters: Tensor, rate: Tensor | float) -> None:
        self._optimiser, self.rate = optimiser, rate
        self._memory = {name: torch.zeros_like(parameters) for name in optimiser.memory}
        self._steps = [0] * parameters.shape[0]
        # The same [M, 1] on a GPU where rows have come with steps of their own, or None.
        self._there: Tensor | None = None

    def step(self, parameters: Tensor, gradients: Tensor) -> None:
        """Move the first n rows, given as [n, d] with their gradients [n, d], in place."""
        n = parameters.shape[0]
        if self._there is not None:
            memory = {name: rows_of_all[:n] for name, rows_of_all in self._memory.items()}
            counts = self._there[:n].add_(1)
            self._optimiser.move(parameters, gradients, self.rate, memory, counts)
            return
        self._steps[:n] = [count + 1 for count in self._steps[:n]]
        begin = 0
        # Rows with equally many steps go together; in a cohort those that train all have.
        for count, group in itertools.groupby(self._steps[:n]):
            rows = slice(begin, begin + len(list(group)))
            memory = {name: rows_of_all[rows] for name, rows_of_all in self._memory.items()}
            self._optimiser.move(parameters[rows], gradients[rows], self.rate, memory, count)
            begin = rows.stop

    def keep(self, rows: Tensor) -> None:
        """Go on with the clients in the rows ``rows`` (int64) alone, in that order."""
        self._memory = {name: value[rows] for name, value in self._memory.items()}
        if self._there is not None:
            self._there = self._there[rows]
        else:
            self._steps = [self._steps[row] for row in rows.tolist()]

    def remembered(self) -> dict[str, Tensor]:
        """Return what is remembered of every row by name: [M, d], or [M, 1] of its steps."""
        if not self._memory:
            return {}
        like = next(iter(self._memory.values()))
        steps = self._there
        if steps is None:
            steps = torch.tensor(self._steps, dtype=like.dtype, device=like.device)[:, None]
        return {**self._memory, STEPS: steps.to(like.dtype, copy=True)}

    def resume(self, remembered: Mapping[str, Tensor]) -> None:
        """Go on from what ``remembered`` returned; zeros are a fresh start."""
        self._memory = {name: remembered[name].clone() for name in self._memory}
        steps = remembered[STEPS]
        # Clients that have trained unequally often would each be a group of its own. On a GPU,
        # where that is as many launches, they go together instead, and no number is fetched.
        if steps.device.type != "cpu" and self._optimiser.takes_unequal:
            self._there = steps.to(torch.float64, copy=True)
        else:
            self._steps = [int(count) for count in steps.flatten().tolist()]


def kept_widths(optimiser: RowOptimiser, width: int) -> dict[str, int]:
    """Return how many numbers an optimiser remembers of a row of ``width`` parameters, by name."""
    if not optimiser.memory:
        return {}
    return {**dict.fromkeys(optimiser.memory, width), STEPS: 1}
