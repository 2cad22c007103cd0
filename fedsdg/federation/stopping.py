"""Inexact solutions: when a client stops before its epochs are used up (FedProx).

Li et al. 2020, Definition 2: w is a gamma-inexact solution of min h(.; w_t) if
||grad h(w; w_t)|| <= gamma ||grad h(w_t; w_t)||, where h is the mean loss over all training samples
of the client plus the terms of its objective. A small gamma asks for much work.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from fedsdg.federation.conditions.condition import ClientData
from fedsdg.files.columns import Column
from fedsdg.parts import Count, Ends, Part, Several, Share
from fedsdg.rng import stream


class Inexactness(Part):
    """Clients train until their solution is gamma-inexact, which is measured after each epoch.

    Gradients are full ones, before clipping, over all parameters that the client trains.
    """

    gamma: Several[Share] | Ends = (0.9, 0.7, 0.5)
    "γ of the clients: one of a list for each, or between two (`{low: 0.5, high: 0.9}`)"
    most_epochs: Count = 10
    "epochs after which a client stops whether its solution is γ-inexact or not"
    gamma_by: Literal["chance", "speed"] = "chance"
    """a client's γ is drawn by `chance`, or follows its `speed`: the slower a client, the larger
    its γ and the less it has to do (needs `conditions.compute`)"""

    columns: ClassVar = (Column("clients", "gamma", "float64", "how inexactly it solves, γ"),)

    def require(self, clients_differ: bool) -> None:
        """Raise ValueError if gamma follows speed, but all clients are equally fast."""
        if self.gamma_by == "speed" and not clients_differ:
            raise ValueError(
                "gamma_by is speed, but all clients are equally fast; set conditions.compute with "
                "slowest below fastest, or gamma_by: chance"
            )

    def prepare(self, data: ClientData) -> ClientData:
        """Draw how inexactly each client solves."""
        gamma = self.draw(data.num_clients, stream("stopping", data.seed), data.facts.get("speed"))
        return data.with_facts(gamma=gamma)

    def draw(
        self,
        num_clients: int,
        generator: np.random.Generator,
        speeds: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return gamma of every client, which is the same in all rounds.

        By speed the slowest client has the largest value and the fastest the smallest; the others
        follow the logarithm of their speed.

        Args:
            num_clients: K.
            generator: Source of randomness.
            speeds: [K] local steps in a second; None: all are equal.

        Returns:
            float64 [K].

        Raises:
            ValueError: gamma follows speed, but all clients are equally fast.
        """
        if self.gamma_by == "speed":
            self.require(speeds is not None and bool(speeds.min() < speeds.max()))
            assert speeds is not None
            behind = np.log(speeds.max() / speeds)
            return self._between(behind / behind.max())
        if isinstance(self.gamma, Ends):
            return self._between(generator.random(num_clients))
        return generator.choice(np.array(self.gamma, dtype=np.float64), size=num_clients)

    def _between(self, shares: np.ndarray) -> np.ndarray:
        """Return the value at each share [K] of the way from the smallest to the largest."""
        if isinstance(self.gamma, Ends):
            return self.gamma.low + shares * (self.gamma.high - self.gamma.low)
        ascending = np.sort(np.array(self.gamma, dtype=np.float64))
        position = (shares * len(ascending)).astype(np.int64)
        return np.asarray(ascending[np.minimum(position, len(ascending) - 1)])
