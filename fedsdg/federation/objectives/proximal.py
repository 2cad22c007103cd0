"""FedProx's term: clients stay near the model that they downloaded."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from fedsdg.federation.objectives.term import Term
from fedsdg.federation.step_rows import Rows
from fedsdg.parts import Range, part


@part
class Proximal(Term):
    """FedProx (Li et al. 2020): μ/2 ‖θ − θ_t‖², gradient μ (θ − θ_t).

    The gradient goes through clipping and the optimiser with the rest of the objective.
    """

    mu: Annotated[float, Range(0)] = 0.1
    "μ of the proximal term μ/2 ‖θ − θ_t‖²"

    def value(self, rows: Rows) -> Tensor:
        return self.mu / 2 * (rows.theta - rows.start).square().sum(1)

    def add_gradient(self, rows: Rows) -> None:
        rows.theta_grad.add_(rows.theta - rows.start, alpha=self.mu)
