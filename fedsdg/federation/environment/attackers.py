"""Who attacks, and what every attack is called with: all that a round knows of attacks.

The attacks themselves (``attacks``) are imported by the runs that have one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from torch import Tensor


@dataclass(frozen=True, eq=False)
class AttackView:
    """What attackers see of a round beside the updates.

    weights: float64 [M], what the server is expected to weight the updates with, summing to 1;
    start: [M, d], the parameters that each client downloaded (θ_k = start_k + Δ_k is what is sent).
    """

    weights: np.ndarray
    start: Tensor


@runtime_checkable
class Attack(Protocol):
    """An attack on updates, on labels, or on both."""

    def __call__(
        self,
        updates: Tensor,
        attackers: np.ndarray,
        view: AttackView,
        generator: np.random.Generator,
    ) -> Tensor:
        """Updates [M, d] with the attackers' rows forged; never the tensor that came in, changed.

        Raises ``ValueError`` where ``attackers`` is no bool [M].
        """
        ...

    def labels(self, labels: np.ndarray, num_classes: int) -> np.ndarray:
        """What attackers make of their training labels [n]."""
        ...


def choose_attackers(num_clients: int, count: int, generator: np.random.Generator) -> np.ndarray:
    """Who attacks, bool [K]: ``count`` clients at random.

    With equal generators those of a smaller count are among those of a larger one, so that shares
    of attackers are compared on the same clients.
    """
    if not 0 <= count < num_clients:
        raise ValueError(
            f"{count} attackers among {num_clients} clients: at least one client must be honest"
        )
    attackers = np.zeros(num_clients, dtype=bool)
    attackers[generator.permutation(num_clients)[:count]] = True
    return attackers
