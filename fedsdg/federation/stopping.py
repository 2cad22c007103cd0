"""When a client stops training: FedProx's γ-inexact solution instead of a fixed number of epochs.

Li et al. 2020, Definition 2: w is a γ-inexact solution of min h(·; w_t) if
‖∇h(w; w_t)‖ ≤ γ ‖∇h(w_t; w_t)‖, where h is the mean loss over all of the client's training samples
plus the terms of its objective. A small γ asks for much work: γ stands for a client's power.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np

from fedsdg.files.columns import Column
from fedsdg.parts import Ends, Range, part


@part
class Inexactness:
    """Train until the solution is γ-inexact: looked at after each epoch.

    By chance every client's γ is drawn, each value equally likely; by speed the slowest client has
    the largest γ and so the least work, the fastest the smallest, and the others one by where the
    logarithm of their speed lies between these. Gradients are full ones, before clipping, over all
    parameters that the client trains. γ = 1 stops as soon as the gradient is no longer than at the
    start; γ = 0 stops at an exact optimum alone.
    """

    gamma: Annotated[tuple[float, ...] | Ends, Range(0, 1)] = (0.9, 0.7, 0.5)
    "γ of the clients: one of a list for each, or between two (`{low: 0.5, high: 0.9}`)"
    most_epochs: Annotated[int, Range(1)] = 10
    "epochs after which a client stops whether its solution is γ-inexact or not"
    gamma_by: Literal["chance", "speed"] = "chance"
    """a client's γ is drawn by `chance`, or follows its `speed`: the slower a client, the larger
    its γ and the less it has to do (needs `conditions.compute`)"""

    #: What it adds to the records.
    columns: ClassVar = (Column("clients", "gamma", "float64", "how inexactly it solves, γ"),)

    def require(self, clients_differ: bool) -> None:
        """Raise ``ValueError`` where γ follows the speed of clients that are all equally fast."""
        if self.gamma_by == "speed" and not clients_differ:
            raise ValueError(
                "gamma_by is speed, but all clients are equally fast; set conditions.compute with "
                "slowest below fastest, or gamma_by: chance"
            )

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
        if self.gamma_by == "speed":
            return self._between(_slowness(speeds))
        if isinstance(self.gamma, Ends):
            return self._between(generator.random(num_clients))
        return generator.choice(np.array(self.gamma, dtype=np.float64), size=num_clients)

    def _between(self, shares: np.ndarray) -> np.ndarray:
        """The γ at each share of the way [K] from the smallest to the largest."""
        if isinstance(self.gamma, Ends):
            low, high = self.gamma
            return low + shares * (high - low)
        ascending = np.sort(np.array(self.gamma, dtype=np.float64))
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
