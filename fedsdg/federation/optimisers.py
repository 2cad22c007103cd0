"""Optimisers over rows: each client has its own state and its own number of steps.

PyTorch's optimisers count steps once for a whole tensor, and its Adam moves rows whose gradient
is zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedsdg import models
from fedsdg.lazy import Tensor, torch
from fedsdg.parts import Part

Rate = Tensor | float
"""A learning rate: one number, or one for each column [d]."""
Memory = Mapping[str, Tensor]
"""What an optimiser remembers of rows [n, d], by name."""


def descend(parameters: Tensor, direction: Tensor, rate: Rate) -> None:
    """Take the step theta <- theta - eta * direction in place.

    Args:
        parameters: [n, d] theta.
        direction: [n, d].
        rate: eta, one number or one for each column [d].
    """
    if isinstance(rate, float):
        parameters.add_(direction, alpha=-rate)
    else:
        parameters.addcmul_(direction, rate, value=-1)


class Optimiser(Part, kind=True):
    """Base of optimisers, which move rows of parameters by their gradients."""

    memory: ClassVar[tuple[str, ...]] = ()
    "names of the numbers kept for each parameter; they are 0 before the first step"

    def move(
        self, parameters: Tensor, gradients: Tensor, rate: Rate, memory: Memory, step: Tensor
    ) -> None:
        """Take one step in place.

        Args:
            parameters: [n, d] theta, changed in place.
            gradients: [n, d], not changed.
            rate: eta, one number or one for each column [d].
            memory: [n, d] by name, changed in place.
            step: [n, 1] float64 on the CPU, the number of this step for each row, from 1.
        """
        raise NotImplementedError


class Adam(Optimiser, name="adam"):
    """theta <- theta - eta m^ / (sqrt(v^) + eps) (Kingma & Ba 2015), without weight decay."""

    memory: ClassVar[tuple[str, ...]] = ("mean", "square")

    beta1: Annotated[float, Field(ge=0, le=0.999999)] = 0.9
    "β₁, share of the past in m"
    beta2: Annotated[float, Field(ge=0, le=0.999999)] = 0.999
    "β₂, share of the past in v"
    epsilon: Annotated[float, Field(ge=1e-12, le=1)] = 1e-8
    "ε beside √v̂"

    def move(
        self, parameters: Tensor, gradients: Tensor, rate: Rate, memory: Memory, step: Tensor
    ) -> None:
        """Take one step in place."""
        if parameters.device.type == "cpu" and parameters.dtype == torch.float32:
            self._move_compiled(parameters, gradients, rate, memory, step)
            return
        # m^ / (sqrt(v^) + eps) = m * size / (sqrt(v) + eps * c), where c = sqrt(1 - beta2^t).
        if bool((step == step[0]).all()):
            step = step[0, 0]  # a number, for which nothing is sent to a GPU
        c = (1 - self.beta2**step).sqrt()
        size = (c / (1 - self.beta1**step)).to(parameters.dtype)
        epsilon = self.epsilon * c.to(parameters.dtype)
        if step.dim():
            size = size.to(parameters.device)
            epsilon = epsilon.to(parameters.device)
        mean = memory["mean"].lerp_(gradients, 1 - self.beta1)
        square = memory["square"].mul_(self.beta2)
        square.addcmul_(gradients, gradients, value=1 - self.beta2)
        direction = square.sqrt().add_(epsilon).reciprocal_().mul_(mean).mul_(size)
        descend(parameters, direction, rate)

    def _move_compiled(
        self, parameters: Tensor, gradients: Tensor, rate: Rate, memory: Memory, step: Tensor
    ) -> None:
        """Take the step by the compiled pass, for runs of rows with equal numbers of steps."""
        width = parameters.shape[1]
        rates = torch.as_tensor(rate, dtype=parameters.dtype).expand(width).contiguous()
        numbers, counts = torch.unique_consecutive(step, return_counts=True)
        matrices = (parameters, gradients, memory["mean"], memory["square"])
        runs = zip(*(matrix.split(counts.tolist()) for matrix in matrices), strict=True)
        for number, rows in zip(numbers.tolist(), runs, strict=True):
            c = math.sqrt(1 - self.beta2 ** int(number))
            models.adam_step(
                *(matrix.numpy() for matrix in rows),
                rates.numpy(),
                np.float32(1 - self.beta1),
                np.float32(self.beta2),
                np.float32(1 - self.beta2),
                np.float32(self.epsilon) * np.float32(c),
                np.float32(c / (1 - self.beta1 ** int(number))),
            )


class AdamW(Adam, name="adamw"):
    """Adam after theta <- (1 - eta lambda) theta (Loshchilov & Hutter 2019)."""

    weight_decay: Annotated[float, Field(ge=0, le=1000.0)] = 0.01
    "λ of θ ← (1 − η λ) θ, before each step"

    def move(
        self, parameters: Tensor, gradients: Tensor, rate: Rate, memory: Memory, step: Tensor
    ) -> None:
        """Take one step in place."""
        if self.weight_decay:
            parameters.mul_(1 - rate * self.weight_decay)
        super().move(parameters, gradients, rate, memory, step)


class Sgd(Optimiser, name="sgd"):
    """theta <- theta - eta v with v <- mu v + g (Sutskever et al. 2013).

    With Nesterov's momentum the step goes along g + mu v.
    """

    momentum: Annotated[float, Field(ge=0, le=0.999999)] = 0.0
    "μ of v ← μ v + g"
    nesterov: bool = False
    "a step along g + μ v in place of v"
    weight_decay: Annotated[float, Field(ge=0, le=1000.0)] = 0.0
    "λ, added to the gradient as λ θ"

    @property
    def memory(self) -> tuple[str, ...]:  # type: ignore[override]
        """The velocity v, if there is momentum."""
        return ("velocity",) if self.momentum else ()

    def move(
        self, parameters: Tensor, gradients: Tensor, rate: Rate, memory: Memory, step: Tensor
    ) -> None:
        """Take one step in place."""
        if self.weight_decay:
            gradients = gradients.add(parameters, alpha=self.weight_decay)
        direction = gradients
        if self.momentum:
            direction = memory["velocity"].mul_(self.momentum).add_(gradients)
        if self.momentum and self.nesterov:
            direction = gradients.add(direction, alpha=self.momentum)
        descend(parameters, direction, rate)


class Adagrad(Optimiser, name="adagrad"):
    """theta <- theta - eta g / (sqrt(s) + eps) with s <- s + g^2 (Duchi et al. 2011)."""

    memory: ClassVar[tuple[str, ...]] = ("squares",)

    epsilon: Annotated[float, Field(ge=1e-12, le=1)] = 1e-10
    "ε beside √Σ g²"

    def move(
        self, parameters: Tensor, gradients: Tensor, rate: Rate, memory: Memory, step: Tensor
    ) -> None:
        """Take one step in place."""
        squares = memory["squares"].addcmul_(gradients, gradients)
        descend(parameters, gradients / models.root(squares).add_(self.epsilon), rate)
