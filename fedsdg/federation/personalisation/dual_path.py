"""FedSDG's personalisation: a gated private branch beside the shared one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fedsdg.federation.objectives.gate_penalty import GatePenalty
from fedsdg.federation.objectives.private_penalty import PrivatePenalty
from fedsdg.federation.objectives.term import Term
from fedsdg.federation.personalisation.personalisation import Personalisation
from fedsdg.parts import Absent, Range, part


@part
class DualPath(Personalisation):
    """FedSDG: a private LoRA branch behind a learned gate, θ_g + m · θ_p (Eq. 3-4).

    It brings the penalties of Eq. 5 on gates and branch. With heads of their own clients have no
    global model.
    """

    lambda1: Annotated[float, Range(0)] = 1e-4
    "λ₁ of Eq. 5, weight of Σ_l |m_l|"
    lambda2: Annotated[float, Range(0)] = 1e-4
    "λ₂ of Eq. 5, weight of ‖θ_p‖²"
    gate: Literal["block", "layer", "client"] = "block"
    "one gate per `block`, `layer` or `client`"
    gate_init: Annotated[float, Range()] = 0.0
    "initial gate logit a; m = σ(a)"
    gate_fixed: Annotated[float | None, Range(0, 1)] = None
    "a gate in [0, 1] that is not learned; null: gates are learned"
    composition: Literal["residual", "factors"] = "residual"
    "Eq. 4 on the `residual` or on the `factors`"
    private_subspace: Literal["own", "shared-a"] = "own"
    "the private branch has its `own` A, or uses the shared one (`shared-a`)"
    private_norm: Literal["factors", "residual", "b-only"] = "factors"
    "what λ₂ penalises: `factors`, `residual` or `b-only`"
    head: Literal["shared", "private"] = "shared"
    "one `shared` head, or a `private` one for every client, and then no global model"
    private_init: Literal["near-zero", "lora", "official"] | None = None
    "first values of the branch; none: near zero where λ₂ penalises factors, else as LoRA's"
    penalties: Annotated[Literal["inside", "decoupled"], Absent("inside")] = "inside"
    """the gradients of both penalties go `inside` the optimiser with that of the loss, or each
    takes a `decoupled` step of its own, as weight decay does in AdamW: θ ← θ − η ∇"""
    gate_samples: Annotated[Literal["all", "held-out"], Absent("all")] = "all"
    """which samples teach the gates: `all` that a client trains on, or a stratified quarter of
    them, `held-out`, from which the private branch does not learn, and the gates from no other"""
    private_block: Literal["first", "middle", "last"] | None = None
    """the only block with the private branch and its gate (`middle`: block ⌊L/2⌋ of
    0 … L − 1); none: every block has them"""

    def __post_init__(self) -> None:
        if self.private_norm == "residual" and self.private_subspace == "shared-a":
            raise ValueError(
                "private_norm: residual cannot be combined with private_subspace: shared-a, which "
                "has no A_p; choose one of them"
            )

    @property
    def adapters(self) -> Mapping[str, Any]:
        usual = "near-zero" if self.private_norm == "factors" else "lora"
        return {
            "branch": "dual",
            "gate": self.gate,
            "gate_init": self.gate_init,
            "gate_fixed": self.gate_fixed,
            "composition": self.composition,
            "private_subspace": self.private_subspace,
            "private_init": self.private_init or usual,
            "private_a_trainable": self.private_norm != "b-only",
            "private_block": self.private_block,
            "head": self.head,
        }

    @property
    def terms(self) -> tuple[Term, ...]:
        apart = self.penalties == "decoupled"
        return (
            GatePenalty(self.lambda1, apart),
            PrivatePenalty(self.lambda2, self.private_norm, apart),
        )
