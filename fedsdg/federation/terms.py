"""Terms of the objective: what a method adds to a client's loss.

A term states its value and its gradient in closed form, on matrices with one row for each client,
so that no autograd graph is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from fedsdg import models
from fedsdg.lazy import Tensor
from fedsdg.parts import NonNegative, Part

if TYPE_CHECKING:
    from fedsdg.federation.training import Rows


class Term(Part):
    """Base of terms; this one is 0, keeps nothing and sends nothing."""

    plain: ClassVar[bool] = False
    "whether its formula holds only if clients train by SGD without momentum"
    keeps: ClassVar[tuple[str, ...]] = ()
    "names of the vectors [d] that a client keeps for the term between rounds, 0 at first"
    reset_after_absence: ClassVar[tuple[str, ...]] = ()
    "those of `keeps` that are 0 again for a client that was not in the last cohort"
    decoupled: ClassVar[bool] = False
    """whether it takes a step of its own beside the optimiser's, as weight decay in AdamW:
    theta <- theta - eta grad(term), neither clipped nor rescaled"""

    def value(self, rows: Rows) -> Tensor:
        """Return the term [a] for each of a clients."""
        return rows.theta.new_zeros(len(rows))

    def add_gradient(self, rows: Rows) -> None:
        """Add the gradient of the term to the gradients of the rows, before clipping."""

    def correct(self, rows: Rows) -> None:
        """Change the gradients of the rows after clipping."""

    def finish(
        self, rows: Rows, steps: Tensor, rate: float
    ) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Return what clients upload beside the update, and what they keep.

        Args:
            rows: The clients after their last step.
            steps: [M] steps by which each client's theta has moved.
            rate: eta_g.

        Returns:
            Vectors [M, d] by name: those that are sent, and those named in `keeps`.
        """
        return {}, {}


class Proximal(Term):
    """mu/2 ||theta - theta_t||^2 with the downloaded model theta_t (FedProx, Li et al. 2020)."""

    mu: NonNegative = 0.1
    "μ of the proximal term μ/2 ‖θ − θ_t‖²"

    def value(self, rows: Rows) -> Tensor:
        """Return the term [a]."""
        return 0.5 * self.mu * (rows.theta - rows.start).square().sum(1)

    def add_gradient(self, rows: Rows) -> None:
        """Add mu (theta - theta_t)."""
        rows.theta_grad.add_(rows.theta - rows.start, alpha=self.mu)


class PersonalProximal(Term):
    """lambda/2 ||v - theta_t||^2 of a client's own model v (Ditto, Li et al. 2021)."""

    strength: NonNegative = 0.1
    "λ that holds a client's own model to the global one"
    decoupled: bool = False  # type: ignore[misc]
    "whether it is applied beside the optimiser"

    def value(self, rows: Rows) -> Tensor:
        """Return the term [a]."""
        return 0.5 * self.strength * (rows.private - rows.start).square().sum(1)

    def add_gradient(self, rows: Rows) -> None:
        """Add lambda (v - theta_t)."""
        rows.private_grad.add_(rows.private - rows.start, alpha=self.strength)


class ControlVariates(Term):
    """The corrected gradient g - c_i + c (SCAFFOLD, Karimireddy et al. 2020, option II).

    The correction follows clipping. After K steps from x to y, c_i <- c_i - c + (x - y) / (K eta).
    """

    plain: ClassVar[bool] = True
    keeps: ClassVar[tuple[str, ...]] = ("control",)

    def correct(self, rows: Rows) -> None:
        """Add c - c_i."""
        rows.theta_grad.add_(rows.received["control"] - rows.kept["control"])

    def finish(
        self, rows: Rows, steps: Tensor, rate: float
    ) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Return the change of c_i, and c_i after it."""
        taken = steps.to(rows.theta.dtype)[:, None]
        mean_gradient = (rows.start - rows.theta) / (taken * rate)
        change = mean_gradient - rows.received["control"]
        return {"control": change}, {"control": rows.kept["control"] + change}


class Curvature(Term):
    """lambda sum_{s != j} (theta - theta_s)' diag(I_s) (theta - theta_s) (FedCurv).

    Shoham et al. 2019, Eq. 4. With I = sum I_s and J = sum I_s theta_s over the other clients of
    the last cohort it is lambda (theta' I theta - 2 J' theta) plus a constant, which `value`
    leaves out. The server sends both sums over the whole cohort; a client subtracts what it sent.
    """

    strength: NonNegative = 1.0
    "λ of the penalty on the others' parameters"

    keeps: ClassVar[tuple[str, ...]] = ("fisher", "fisher_theta")
    reset_after_absence: ClassVar[tuple[str, ...]] = ("fisher", "fisher_theta")

    def value(self, rows: Rows) -> Tensor:
        """Return the term [a] less its constant."""
        curvature, pull = self._of_others(rows)
        return self.strength * (rows.theta * (curvature * rows.theta - 2 * pull)).sum(1)

    def add_gradient(self, rows: Rows) -> None:
        """Add 2 lambda (I theta - J)."""
        curvature, pull = self._of_others(rows)
        slope = curvature.mul_(rows.theta).sub_(pull)
        rows.theta_grad.add_(slope, alpha=2 * self.strength)

    def _of_others(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return I and J of the other clients of the last cohort, [a, d] each."""
        return (
            rows.received["fisher"] - rows.kept["fisher"],
            rows.received["fisher_theta"] - rows.kept["fisher_theta"],
        )


class GatePenalty(Term):
    """lambda_1 sum_l |m_l| with m = sigmoid(a) (FedSDG, Eq. 5)."""

    lambda1: NonNegative = 1e-4
    "λ₁ of Eq. 5, weight of Σ_l |m_l|"
    decoupled: bool = False  # type: ignore[misc]
    "whether it is applied beside the optimiser"

    def value(self, rows: Rows) -> Tensor:
        """Return the term [a]."""
        return self.lambda1 * models.sigmoid(rows.private[:, rows.columns.gates]).sum(1)

    def add_gradient(self, rows: Rows) -> None:
        """Add lambda_1 m (1 - m) to the slopes of the logits a."""
        gates = models.sigmoid(rows.private[:, rows.columns.gates])
        rows.private_grad[:, rows.columns.gates] += self.lambda1 * gates * (1 - gates)


class PrivatePenalty(Term):
    """lambda_2 ||theta_p||^2 (FedSDG, Eq. 5).

    With `factors` the sum of squares of all private factors; with `b-only` that of every B_p, the
    only ones that train then; with `residual` ||B_p A_p||_F^2 summed over the adapted layers.
    """

    lambda2: NonNegative = 1e-4
    "λ₂ of Eq. 5, weight of ‖θ_p‖²"
    private_norm: Literal["factors", "residual", "b-only"] = "factors"
    "what λ₂ penalises: `factors`, `residual` or `b-only`"
    decoupled: bool = False  # type: ignore[misc]
    "whether it is applied beside the optimiser"

    def value(self, rows: Rows) -> Tensor:
        """Return the term [a]."""
        if self.private_norm != "residual":
            return self.lambda2 * (rows.private.square() * self._counted(rows)).sum(1)
        total = rows.private.new_zeros(len(rows))
        for (a, _), (b, _) in self._factor_pairs(rows):
            total += (b @ a).square().sum((1, 2))
        return self.lambda2 * total

    def add_gradient(self, rows: Rows) -> None:
        """Add 2 lambda_2 theta_p, or 2 lambda_2 times B A A' to B's slope and B' B A to A's."""
        if self.private_norm != "residual":
            counted = self._counted(rows).to(rows.private.dtype)
            rows.private_grad.addcmul_(rows.private, (2 * self.lambda2) * counted)
            return
        for (a, slope_a), (b, slope_b) in self._factor_pairs(rows):
            product = b @ a
            slope_b += 2 * self.lambda2 * (product @ a.mT)
            slope_a += 2 * self.lambda2 * (b.mT @ product)

    def _counted(self, rows: Rows) -> Tensor:
        """Return which private columns are penalised, bool [d_p]."""
        by_norm = {"factors": rows.columns.factors, "b-only": rows.columns.factors_b}
        return by_norm[self.private_norm]

    def _factor_pairs(self, rows: Rows) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """Yield A_p and B_p of each adapted layer, with their gradients [a, ...]."""
        values = models.views(rows.private, rows.columns.specs)
        slopes = models.views(rows.private_grad, rows.columns.specs)
        for name in values:
            if name.endswith("lora_A_private"):
                both = (name, name.replace("lora_A_", "lora_B_"))
                yield [(values[factor], slopes[factor]) for factor in both]
