"""FedSDG's penalty on the gates of clients' private branches."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from fedsdg.federation.branches import gate_penalty
from fedsdg.federation.objectives.term import Term
from fedsdg.federation.step_rows import Rows
from fedsdg.models.rounding import sigmoid
from fedsdg.parts import Range, part


@part
class GatePenalty(Term):
    """λ₁ Σ_l |m_l|; gradient λ₁ sign(m) m (1 − m) at the logit, where m > 0 always (Eq. 5)."""

    lambda1: Annotated[float, Range(0)] = 1e-4
    "λ₁ of Eq. 5, weight of Σ_l |m_l|"
    decoupled: bool = False
    "whether it is applied beside the optimiser (see ``Term``)"

    def value(self, rows: Rows) -> Tensor:
        return self.lambda1 * gate_penalty(rows.private, rows.columns)

    def add_gradient(self, rows: Rows) -> None:
        gates = sigmoid(rows.private[:, rows.columns.gates])
        rows.private_grad[:, rows.columns.gates] += self.lambda1 * gates * (1 - gates)
