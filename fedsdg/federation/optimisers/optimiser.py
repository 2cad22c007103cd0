"""Optimisers over rows: every client has its own state and its own step count.

PyTorch's optimisers keep one step count for a whole tensor, and Adam moves rows whose gradient is
zero; a cohort of clients of different sizes needs neither. Client by client each equals that of
``torch.optim``. An optimiser is a description without a state; ``Mover`` keeps what it remembers.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

#: What a client keeps of an optimiser is called so, before the optimiser's own names.
KEPT = "private."
STEPS = "steps"


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


@dataclass(frozen=True)
class Sgd(RowOptimiser):
    """θ ← θ − η v with v ← μ v + g, or, with Nesterov's momentum, θ ← θ − η (g + μ v).

    ``weight_decay`` λ adds λ θ to g first (Sutskever et al. 2013 in the form of PyTorch). Without
    momentum Nesterov's changes nothing.
    """

    takes_unequal: ClassVar[bool] = True

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

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


@dataclass(frozen=True)
class Adam(RowOptimiser):
    """Adam (Kingma & Ba 2015) without weight decay: θ ← θ − η m̂ / (√v̂ + ε)."""

    takes_unequal: ClassVar[bool] = True

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

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
        mean = memory["mean"].lerp_(gradients, 1 - beta1)
        square = memory["square"].mul_(beta2).addcmul_(gradients, gradients, value=1 - beta2)
        # Worked out in float64 where the number of steps is: of one for all rows on the host, so
        # that it is no work for the device, and travels there with the launch that it is for.
        counted = torch.as_tensor(step, dtype=torch.float64)
        root = (1 - beta2**counted).sqrt()
        size = (root / (1 - beta1**counted)).to(parameters.dtype)
        root = root.to(parameters.dtype)
        # m̂ / (√v̂ + ε) = m · (root / (1 − β1ᵗ)) / (√v + ε · root)
        move = square.sqrt().add_(self.epsilon * root).reciprocal_().mul_(mean).mul_(size)
        descend(parameters, move, rate)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam after θ ← (1 − η λ) θ (Loshchilov & Hutter 2019), λ the ``weight_decay``."""

    weight_decay: float = 0.01

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


@dataclass(frozen=True)
class Adagrad(RowOptimiser):
    """θ ← θ − η g / (√s + ε) with s ← s + g² (Duchi et al. 2011)."""

    takes_unequal: ClassVar[bool] = True

    epsilon: float = 1e-10

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
        descend(parameters, gradients / squares.sqrt().add_(self.epsilon), rate)


class Mover:
    """An optimiser at work on the rows of a matrix.

    ``parameters`` [M, d] gives shape and dtype; ``rate`` is η for all columns, or per column [d].
    Rows are stepped as leading blocks: ``step`` with n rows moves the first n clients and counts
    a step for each of them alone.
    """

    def __init__(self, optimiser: RowOptimiser, parameters: Tensor, rate: Tensor | float) -> None:
        self._optimiser, self._rate = optimiser, rate
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
            self._optimiser.move(parameters, gradients, self._rate, memory, counts)
            return
        self._steps[:n] = [count + 1 for count in self._steps[:n]]
        begin = 0
        # Rows with equally many steps go together; in a cohort those that train all have.
        for count, group in itertools.groupby(self._steps[:n]):
            rows = slice(begin, begin + len(list(group)))
            memory = {name: rows_of_all[rows] for name, rows_of_all in self._memory.items()}
            self._optimiser.move(parameters[rows], gradients[rows], self._rate, memory, count)
            begin = rows.stop

    def keep(self, rows: Tensor) -> None:
        """Go on with the clients in the rows ``rows`` (int64) alone, in that order."""
        self._memory = {name: value[rows] for name, value in self._memory.items()}
        if self._there is not None:
            self._there = self._there[rows]
        else:
            self._steps = [self._steps[row] for row in rows.tolist()]

    def remembered(self) -> dict[str, Tensor]:
        """What is remembered of every row under the names of ``kept_widths``: [M, d], or [M, 1]."""
        if not self._memory:
            return {}
        like = next(iter(self._memory.values()))
        steps = self._there
        if steps is None:
            steps = torch.tensor(self._steps, dtype=like.dtype, device=like.device)[:, None]
        named = {**self._memory, STEPS: steps.to(like.dtype, copy=True)}
        return {f"{KEPT}{name}": value for name, value in named.items()}

    def resume(self, remembered: Mapping[str, Tensor]) -> None:
        """Go on from what ``remembered`` returned; zeros are a fresh start."""
        self._memory = {name: remembered[f"{KEPT}{name}"].clone() for name in self._memory}
        steps = remembered[f"{KEPT}{STEPS}"]
        # Clients that have trained unequally often would each be a group of its own. On a GPU,
        # where that is as many launches, they go together instead, and no number is fetched.
        if steps.device.type != "cpu" and self._optimiser.takes_unequal:
            self._there = steps.to(torch.float64, copy=True)
        else:
            self._steps = [int(count) for count in steps.flatten().tolist()]


def kept_widths(optimiser: RowOptimiser, width: int) -> dict[str, int]:
    """How many numbers an optimiser remembers of a row of ``width`` parameters, by name."""
    if not optimiser.memory:
        return {}
    return {**{f"{KEPT}{name}": width for name in optimiser.memory}, f"{KEPT}{STEPS}": 1}


#: By the names of the config, with their defaults.
OPTIMISERS: Mapping[str, RowOptimiser] = {
    "adam": Adam(),
    "adamw": AdamW(),
    "sgd": Sgd(),
    "adagrad": Adagrad(),
}
