"""What holds for whatever tells clients to stop early: a γ for each, the same every time."""

from __future__ import annotations

import numpy as np

from fedsdg.experiment.examining.findings import Failure, Property
from fedsdg.federation.stopping import Inexactness

CLIENTS = 7


def gammas_are_shares(stopping: Inexactness) -> str:
    """[K] numbers from 0 to 1 of equal streams are equal."""
    speeds = np.linspace(1.0, 4.0, CLIENTS)
    one, two = (stopping.draw(CLIENTS, np.random.default_rng(3), speeds) for _ in range(2))
    if one.shape != (CLIENTS,) or not ((one >= 0) & (one <= 1)).all():
        raise Failure(f"the γ of {CLIENTS} clients are {one.tolist()}")
    if not np.array_equal(one, two):
        raise Failure("with the same stream of random numbers the γ are others")
    return f"{CLIENTS} clients of different speed"


STOPPING = (
    Property(
        "every client has a γ from 0 to 1",
        gammas_are_shares,
        "draw [K] numbers from 0 to 1 from the generator that is given",
    ),
)
