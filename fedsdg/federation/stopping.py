"""When a client stops training: FedProx's γ-inexact solution instead of a fixed number of epochs.

Li et al. 2020, Definition 2: w is a γ-inexact solution of min h(·; w_t) if
‖∇h(w; w_t)‖ ≤ γ ‖∇h(w_t; w_t)‖, where h is the mean loss over all of the client's training samples
plus the terms of its objective. A small γ asks for much work: γ stands for a client's power.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Inexactness:
    """Train until the solution is γ-inexact: looked at after each epoch, ``most`` epochs at most.

    ``gammas``: the values of γ among clients, or ``low`` and ``high``, between which they lie.
    ``follows``: "chance" draws every client's γ, each value equally likely; "speed" gives the
    slowest client the largest γ and so the least work, the fastest the smallest, and the others
    one by where the logarithm of their speed lies between these. Gradients are full ones, before
    clipping, over all parameters that the client trains. γ = 1 stops as soon as the gradient is no
    longer than at the start; γ = 0 stops at an exact optimum alone.
    """

    gammas: tuple[float, ...] | Mapping[str, float] = (0.9, 0.7, 0.5)
    most: int = 10
    follows: str = "chance"

    def __post_init__(self) -> None:
        spread = isinstance(self.gammas, Mapping)
        values = list(self.gammas.values()) if isinstance(self.gammas, Mapping) else self.gammas
        wrong = [gamma for gamma in values if not 0 <= gamma <= 1]
        if wrong or not values:
            raise ValueError(f"gammas {self.gammas} must be one or more numbers in [0, 1]")
        if spread and not self.gammas["low"] <= self.gammas["high"]:  # type: ignore[call-overload]
            raise ValueError(f"gammas {self.gammas}: low is above high; exchange them")
        if self.follows not in ("chance", "speed"):
            raise ValueError(f"follows is {self.follows!r}; use 'chance' or 'speed'")
        if self.most < 1:
            raise ValueError(f"most is {self.most}, but clients train at least 1 epoch; raise it")

    def draw(
        self,
        num_clients: int,
        generator: np.random.Generator,
        speeds: np.ndarray | None = None,
    ) -> np.ndarray:
        """γ of every client [K] float64, a client's for good.

        ``speeds`` [K]: steps per second. Raises ``ValueError`` where γ follows them and there are
        none, or all are equal.
        """
        if self.follows == "speed":
            return self._between(_slowness(speeds))
        if isinstance(self.gammas, Mapping):
            return self._between(generator.random(num_clients))
        return generator.choice(np.array(self.gammas, dtype=np.float64), size=num_clients)

    def _between(self, shares: np.ndarray) -> np.ndarray:
        """The γ at each share of the way [K] from the smallest to the largest."""
        if isinstance(self.gammas, Mapping):
            low, high = self.gammas["low"], self.gammas["high"]
            return low + shares * (high - low)
        ascending = np.sort(np.array(self.gammas, dtype=np.float64))
        places = np.minimum((shares * len(ascending)).astype(np.int64), len(ascending) - 1)
        return np.asarray(ascending[places])


def _slowness(speeds: np.ndarray | None) -> np.ndarray:
    """[K] 0 for the fastest client, 1 for the slowest, linear in the logarithm of the speed."""
    if speeds is None or not speeds.min() < speeds.max():
        raise ValueError(
            "γ follows the speed of clients, but they have none or all the same; set "
            "conditions.compute with slowest below fastest, or gamma_by: chance"
        )
    behind = np.log(speeds.max() / speeds)
    return np.asarray(behind / behind.max())
