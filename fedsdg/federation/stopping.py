"""When a client stops training: FedProx's γ-inexact solution instead of a fixed number of epochs.

Li et al. 2020, Definition 2: w is a γ-inexact solution of min h(·; w_t) if
‖∇h(w; w_t)‖ ≤ γ ‖∇h(w_t; w_t)‖, where h is the mean loss over all of the client's training samples
plus the terms of its objective. A small γ asks for much work: γ stands for a client's power.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Inexactness:
    """Train until the solution is γ-inexact: looked at after each epoch, ``most`` epochs at most.

    ``gammas``: the values of γ among clients. Gradients are full ones, before clipping, over all
    parameters that the client trains. γ = 1 stops as soon as the gradient is no longer than at
    the start; γ = 0 stops at an exact optimum alone.
    """

    gammas: tuple[float, ...] = (0.9, 0.7, 0.5)
    most: int = 10

    def __post_init__(self) -> None:
        wrong = [gamma for gamma in self.gammas if not 0 <= gamma <= 1]
        if wrong or not self.gammas:
            raise ValueError(f"gammas {self.gammas} must be one or more numbers in [0, 1]")
        if self.most < 1:
            raise ValueError(f"most is {self.most}, but clients train at least 1 epoch; raise it")

    def draw(self, num_clients: int, generator: np.random.Generator) -> np.ndarray:
        """γ of every client [K] float64, each of ``gammas`` equally likely; a client's for good."""
        return generator.choice(np.array(self.gammas, dtype=np.float64), size=num_clients)
