"""FedSDG's penalty on the size of clients' private branches."""

from __future__ import annotations

from typing import Annotated, Literal

from torch import Tensor

from fedsdg.federation.objectives.term import Term
from fedsdg.federation.step_rows import PrivateColumns, Rows
from fedsdg.parts import Range, part


@part
class PrivatePenalty(Term):
    """λ₂ times the squared norm of the private branch (Eq. 5).

    Of ``factors`` it is Σ θ_p² over all private factors, gradient 2 λ₂ θ_p (the specification); of
    ``b-only`` the same where only B_p is trained; of ``residual`` ‖B_p A_p‖²_F per adapted layer,
    gradients 2 λ₂ B A Aᵀ at B and 2 λ₂ Bᵀ B A at A.
    """

    lambda2: Annotated[float, Range(0)] = 1e-4
    "λ₂ of Eq. 5, weight of ‖θ_p‖²"
    private_norm: Literal["factors", "residual", "b-only"] = "factors"
    "what λ₂ penalises: `factors`, `residual` or `b-only`"
    decoupled: bool = False
    "whether it is applied beside the optimiser (see ``Term``)"

    def value(self, rows: Rows) -> Tensor:
        if self.private_norm == "residual":
            return self.lambda2 * self._residual(rows)
        return self.lambda2 * (rows.private.square() * self._counted(rows.columns)).sum(1)

    def add_gradient(self, rows: Rows) -> None:
        if self.private_norm != "residual":
            scale = (2 * self.lambda2) * self._counted(rows.columns).to(rows.private.dtype)
            rows.private_grad.addcmul_(rows.private, scale)
            return
        for a_place, a_shape, b_place, b_shape in rows.columns.pairs:
            a = rows.private[:, a_place].unflatten(1, a_shape)
            b = rows.private[:, b_place].unflatten(1, b_shape)
            product = b @ a
            rows.private_grad[:, b_place] += 2 * self.lambda2 * (product @ a.mT).flatten(1)
            rows.private_grad[:, a_place] += 2 * self.lambda2 * (b.mT @ product).flatten(1)

    def _counted(self, columns: PrivateColumns) -> Tensor:
        if self.private_norm == "factors":
            return columns.factors
        counted = columns.factors.clone()
        for a_place, *_ in columns.pairs:
            counted[a_place] = False
        return counted

    @staticmethod
    def _residual(rows: Rows) -> Tensor:
        total = rows.private.new_zeros(rows.private.shape[0])
        for a_place, a_shape, b_place, b_shape in rows.columns.pairs:
            a = rows.private[:, a_place].unflatten(1, a_shape)
            b = rows.private[:, b_place].unflatten(1, b_shape)
            total = total + (b @ a).square().sum((1, 2))
        return total
