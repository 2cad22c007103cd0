"""The parameters that are aggregated, in the shapes in which the compared codes take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.rules import BYZANTINE_SHARE, RULES
from benchmarks.timing import Work
from fedsdg.aggregation import aggregate

TENSORS = 12
"""A model's parameters are so many tensors of unequal size."""
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Cohort:
    """Clients' parameters [M, d]; the global parameters are zero, so these are the updates too."""

    updates: Tensor

    @classmethod
    def draw(cls, clients: int, parameters: int, device: str = "cpu") -> Cohort:
        """Draw normal numbers with mean 1/2 and deviation 1: all clients agree with the mean."""
        generator = torch.Generator(device).manual_seed(0)
        rows = torch.randn(clients, parameters, generator=generator, device=device)
        return cls(rows.add_(0.5))

    @property
    def clients(self) -> int:
        """M."""
        return self.updates.shape[0]

    @property
    def f(self) -> int:
        """The number of attackers that robust rules withstand."""
        return attackers(self.clients)

    @cached_property
    def global_params(self) -> dict[str, Tensor]:
        """The global parameters, as tensors by name."""
        return cut(torch.zeros_like(self.updates[0]))

    @cached_property
    def client_params(self) -> list[dict[str, Tensor]]:
        """Every client's parameters: tensors by name, views of a row."""
        return [cut(row) for row in self.updates]

    @cached_property
    def arrays(self) -> list[tuple[list[np.ndarray], int]]:
        """What Flower's functions take: arrays and number of samples of every client."""
        return [([t.numpy() for t in client.values()], 1) for client in self.client_params]


def attackers(clients: int) -> int:
    """Return the number of attackers among so many clients that robust rules withstand."""
    return max(1, clients // BYZANTINE_SHARE)


def cut(row: Tensor) -> dict[str, Tensor]:
    """Return a vector [d] as tensors by name, views of it."""
    ends = [len(row) * i * i // TENSORS**2 for i in range(TENSORS + 1)]
    return {f"layer{i}": row[a:b] for i, (a, b) in enumerate(pairwise(ends))}


def small_dictionaries(clients: int, tensors: int, numbers: int) -> tuple[Arrays, list[Arrays]]:
    """Return global parameters and clients' parameters of many small arrays.

    Args:
        clients: Number of clients, whose updates share a direction.
        tensors: Arrays of each.
        numbers: Numbers in each array.
    """
    generator = np.random.default_rng(0)

    def draw(scale: float, shift: float) -> np.ndarray:
        return scale * generator.standard_normal((tensors, numbers), np.float32) + shift

    origin = draw(1.0, 0.0)
    rows = [origin + draw(0.1, 0.05) for _ in range(clients)]
    named = [{f"layer{i}": array.copy() for i, array in enumerate(row)} for row in (origin, *rows)]
    return named[0], named[1:]


def ours(
    rule: str,
    global_params: Mapping[str, Any],
    client_params: Sequence[Mapping[str, Any]],
) -> Work:
    """Return one call of `aggregate` by a rule; every client has one sample."""
    count = len(client_params)
    parameters = {"f": attackers(count)} if RULES[rule].robust else {}
    row = {"type": rule, **parameters}
    ones = [1] * count

    def call() -> Any:
        return aggregate(
            row,
            global_params,
            client_params,
            num_samples=ones,
            num_batches=ones,
            client_samples=ones,
        ).parameters

    return call


def in_numpy(rule: str, global_params: Arrays, client_params: Sequence[Arrays]) -> Work:
    """Return the same in plain numpy: stack, compute, and cut the result into arrays."""
    f = attackers(len(client_params))

    def call() -> Arrays:
        origin = joined(global_params)
        updates = stacked(client_params)
        updates -= origin
        result = origin + RULES[rule].step(updates, f)
        sizes = [array.size for array in global_params.values()]
        pieces = np.split(result, np.cumsum(sizes)[:-1])
        return dict(zip(global_params, pieces, strict=True))

    return call


def joined(params: Arrays) -> np.ndarray:
    """Return the arrays of a dictionary as one vector [d]."""
    return np.concatenate([array.ravel() for array in params.values()])


def stacked(clients: Sequence[Arrays]) -> np.ndarray:
    """Return the arrays of many dictionaries as one matrix [M, d]."""
    return np.stack([joined(params) for params in clients])
