"""Objective terms: what a method adds to a client's cross-entropy, and to its gradient.

A term states its value and its gradient in closed form, on whole matrices with one row a
client, so that it costs one pass over the parameters and no autograd graph. Terms compose by
standing in a tuple.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsdg.federation.step_rows import PrivateColumns, Rows


class Term:
    """The neutral term: value 0, gradient 0, nothing kept and nothing sent."""

    #: The optimiser a term cannot do without, or None.
    optimiser: ClassVar[str | None] = None
    #: Names of the vectors [d] that every client keeps for this term between rounds, initially 0.
    keeps: ClassVar[tuple[str, ...]] = ()
    #: Those of them that are 0 again for a client that was not in the last cohort.
    fleeting: ClassVar[tuple[str, ...]] = ()

    def value(self, rows: Rows) -> Tensor:
        """The term per client, [a]."""
        return rows.theta.new_zeros(rows.theta.shape[0])

    def add_gradient(self, rows: Rows) -> None:
        """Add the term's gradient to the gradients in ``rows``; it is clipped with them."""

    def correct(self, rows: Rows) -> None:
        """Change the gradients after clipping."""

    def finish(
        self, rows: Rows, steps: Tensor, rate: float
    ) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """After the last step: (what is uploaded beside the update, what the client keeps)."""
        return {}, {}


def gate_penalty(private: Tensor, columns: PrivateColumns) -> Tensor:
    """Σ_l |m_l| with m = σ(a), per client: [a, d_p] -> [a] (Eq. 5, second term without λ₁)."""
    return torch.sigmoid(private[:, columns.gates]).sum(1)


def private_penalty(private: Tensor, columns: PrivateColumns) -> Tensor:
    """‖θ_p‖²: Σ of squares of all ``_private`` entries, per client (Eq. 5 without λ₂)."""
    return (private.square() * columns.factors).sum(1)


@dataclass(frozen=True)
class GatePenalty(Term):
    """λ₁ Σ_l |m_l|; gradient λ₁ sign(m) m (1 − m) at the logit, where m > 0 always."""

    strength: float

    def value(self, rows: Rows) -> Tensor:
        return self.strength * gate_penalty(rows.private, rows.columns)

    def add_gradient(self, rows: Rows) -> None:
        gates = torch.sigmoid(rows.private[:, rows.columns.gates])
        rows.private_grad[:, rows.columns.gates] += self.strength * gates * (1 - gates)


@dataclass(frozen=True)
class PrivatePenalty(Term):
    """λ₂ times the squared norm of the private branch.

    ``norm``: ``factors`` Σ θ_p² over all private factors, gradient 2 λ₂ θ_p (the specification);
    ``b-only`` the same where only B_p is trained; ``residual`` ‖B_p A_p‖²_F per adapted layer,
    gradients 2 λ₂ B A Aᵀ at B and 2 λ₂ Bᵀ B A at A.
    """

    strength: float
    norm: str = "factors"

    def value(self, rows: Rows) -> Tensor:
        if self.norm == "residual":
            return self.strength * self._residual(rows)
        return self.strength * (rows.private.square() * self._counted(rows.columns)).sum(1)

    def add_gradient(self, rows: Rows) -> None:
        if self.norm != "residual":
            scale = (2 * self.strength) * self._counted(rows.columns).to(rows.private.dtype)
            rows.private_grad.addcmul_(rows.private, scale)
            return
        for a_place, a_shape, b_place, b_shape in rows.columns.pairs:
            a = rows.private[:, a_place].unflatten(1, a_shape)
            b = rows.private[:, b_place].unflatten(1, b_shape)
            product = b @ a
            rows.private_grad[:, b_place] += 2 * self.strength * (product @ a.mT).flatten(1)
            rows.private_grad[:, a_place] += 2 * self.strength * (b.mT @ product).flatten(1)

    def _counted(self, columns: PrivateColumns) -> Tensor:
        if self.norm == "factors":
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


@dataclass(frozen=True)
class Proximal(Term):
    """FedProx (Li et al. 2020): μ/2 ‖θ − θ_t‖², gradient μ (θ − θ_t).

    The gradient goes through clipping and the optimiser with the rest of the objective.
    """

    mu: float

    def value(self, rows: Rows) -> Tensor:
        return self.mu / 2 * (rows.theta - rows.start).square().sum(1)

    def add_gradient(self, rows: Rows) -> None:
        rows.theta_grad.add_(rows.theta - rows.start, alpha=self.mu)


@dataclass(frozen=True)
class ControlVariates(Term):
    """SCAFFOLD (Karimireddy et al. 2020), option II.

    Steps y ← y − η (g(y) − c_i + c); afterwards c_i⁺ = c_i − c + (x − y) / (K η) with K the
    client's actual number of steps. The clipped raw gradient is corrected, not the sum.
    Uploads ``control`` = c_i⁺ − c_i.
    """

    optimiser: ClassVar[str | None] = "sgd"
    keeps: ClassVar[tuple[str, ...]] = ("control",)

    def correct(self, rows: Rows) -> None:
        rows.theta_grad.add_(rows.received["control"] - rows.state["control"])

    def finish(
        self, rows: Rows, steps: Tensor, rate: float
    ) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        moved = (rows.start - rows.theta) / (steps.to(rows.theta.dtype)[:, None] * rate)
        change = moved - rows.received["control"]
        return {"control": change}, {"control": rows.state["control"] + change}


@dataclass(frozen=True)
class Curvature(Term):
    """FedCurv (Shoham et al. 2019, Eq. 4): λ Σ_{s≠j} (θ − θ_s)ᵀ diag(I_s) (θ − θ_s).

    With I = Σ_{s≠j} I_s and J = Σ_{s≠j} I_s θ_s over the last cohort this is λ (θᵀ I θ − 2 Jᵀ θ)
    plus a constant, which is left out of the value; the gradient is 2λ (I θ − J). The server sends
    both sums over the whole cohort, ``fisher`` and ``fisher_theta``, and a client takes off what it
    sent itself. Both are measured after training (``diagonal_fisher``), not by this term.
    """

    strength: float
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
