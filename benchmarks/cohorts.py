"""The updates that are aggregated, in the shapes in which the compared codes want them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch

from fedsdg.aggregation.types import Context

TENSORS = 12
"""A model's parameters come as so many tensors of unequal size."""


def cut(row: torch.Tensor) -> dict[str, torch.Tensor]:
    """A vector [d] as named tensors, views of it."""
    bounds = [len(row) * i * i // TENSORS**2 for i in range(TENSORS + 1)]
    return {f"layer{i}": row[a:b] for i, (a, b) in enumerate(pairwise(bounds))}


@dataclass(frozen=True)
class Cohort:
    """Updates [M, d] and the same numbers as others take them; the global parameters are zero."""

    updates: torch.Tensor

    @classmethod
    def draw(cls, clients: int, parameters: int, seed: int = 0) -> Cohort:
        """Normal with mean 1/2 and deviation 1: every client is aligned with the mean."""
        generator = torch.Generator().manual_seed(seed)
        return cls(torch.randn(clients, parameters, generator=generator).add_(0.5))

    @property
    def clients(self) -> int:
        return self.updates.shape[0]

    @property
    def parameters(self) -> int:
        return self.updates.shape[1]

    @property
    def f(self) -> int:
        """Byzantine clients that robust rules are asked to withstand: a tenth, at least one."""
        return max(1, self.clients // 10)

    @cached_property
    def context(self) -> Context:
        ones = np.ones(self.clients, dtype=np.int64)
        ids = np.arange(self.clients)
        return Context(1, ids, self.clients, ones, self.clients, ones, ones)

    @cached_property
    def origin(self) -> dict[str, torch.Tensor]:
        """The global parameters."""
        return cut(torch.zeros(self.parameters))

    @cached_property
    def dictionaries(self) -> list[dict[str, torch.Tensor]]:
        """The parameters of every client: dictionaries of tensors."""
        return [cut(row) for row in self.updates]

    @cached_property
    def layers(self) -> list[tuple[list[np.ndarray], int]]:
        """What Flower's functions take: (arrays, number of samples) of every client."""
        return [([t.numpy() for t in client.values()], 1) for client in self.dictionaries]
