"""FedCurv's term: clients stay near the others' models in what matters to these."""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import Tensor

from fedsdg.federation.objectives.term import Term
from fedsdg.federation.step_rows import Rows
from fedsdg.parts import Range, part


@part
class Curvature(Term):
    """FedCurv (Shoham et al. 2019, Eq. 4): λ Σ_{s≠j} (θ − θ_s)ᵀ diag(I_s) (θ − θ_s).

    With I = Σ_{s≠j} I_s and J = Σ_{s≠j} I_s θ_s over the last cohort this is λ (θᵀ I θ − 2 Jᵀ θ)
    plus a constant, which is left out of the value; the gradient is 2λ (I θ − J). The server sends
    both sums over the whole cohort, ``fisher`` and ``fisher_theta``, and a client takes off what it
    sent itself. Both are measured after training (``diagonal_fisher``), not by this term.
    """

    strength: Annotated[float, Range(0)] = 1.0
    "λ of the penalty on the others' parameters"

    keeps: ClassVar[tuple[str, ...]] = ("fisher", "fisher_theta")
    fleeting: ClassVar[tuple[str, ...]] = ("fisher", "fisher_theta")

    def value(self, rows: Rows) -> Tensor:
        curvature, pull = self._of_the_others(rows)
        return self.strength * (rows.theta * (curvature * rows.theta - 2 * pull)).sum(1)

    def add_gradient(self, rows: Rows) -> None:
        curvature, pull = self._of_the_others(rows)
        rows.theta_grad.add_(curvature.mul_(rows.theta).sub_(pull), alpha=2 * self.strength)

    @staticmethod
    def _of_the_others(rows: Rows) -> tuple[Tensor, Tensor]:
        """(I, J) of the other clients of the last cohort, [a, d] each."""
        curvature = rows.received["fisher"] - rows.state["fisher"]
        return curvature, rows.received["fisher_theta"] - rows.state["fisher_theta"]
