"""Personalisations: what of a model stays with its client, and in which phases clients train.

A personalisation is data; nothing else asks which method it serves. Where clients have a whole
model of their own beside the server's, it is a copy of the communicated row in the private one
(`MixedModel`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from fedsdg.federation.phases import PRIVATE, SHARED, Phase
from fedsdg.federation.terms import GatePenalty, PersonalProximal, PrivatePenalty, Term
from fedsdg.parts import Count, Natural, NonNegative, Part, Share

Optimiser = Literal["training", "sgd"]
Penalties = Literal["inside", "decoupled"]


class Personalisation(Part):
    """Base of personalisations; with this one every client uses the global model."""

    own_start: ClassVar[str] = "initial"
    """what a model v of the client's own is before the client first trains: the common
    initialisation (`initial`), or the model of its first `download`; with `mixture`, training of
    each round begins at a v + (1 - a) theta, and its result is both v and what is sent"""
    own_optimiser: ClassVar[str] = "training"
    "the optimiser of what is private: that of the `training`, or plain `sgd`"
    gate_samples: ClassVar[str] = "all"
    "which samples teach gates: `all`, or a `held-out` quarter that teaches nothing else"

    adapters: ClassVar[Mapping[str, Any]] = {}
    "fields of `AdapterConfig`"
    mixed_weight: ClassVar[float | None] = None
    "weight a of v in a v + (1 - a) theta, which a client uses; None: there is no v"
    terms: ClassVar[tuple[Term, ...]] = ()
    "what is added to the objective, before the terms of the method"
    tuning: ClassVar[tuple[int, bool]] = (0, False)
    "epochs for which a copy is tuned before an evaluation, and whether its head alone is"

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        """Return the parts of a client's training in a round of so many epochs."""
        return (Phase(epochs),)


class Shared(Personalisation):
    """Every client uses the global model."""


class LocalOnly(Personalisation):
    """Every parameter is private: nothing is sent and there is no global model."""

    adapters: ClassVar[Mapping[str, Any]] = {"local": True}


class DualPath(Personalisation):
    """FedSDG: a private LoRA branch behind a learned gate, theta_g + m theta_p (Eq. 3-5).

    With heads of their own clients have no global model.
    """

    lambda1: NonNegative = 1e-4
    "λ₁ of Eq. 5, weight of Σ_l |m_l|"
    lambda2: NonNegative = 1e-4
    "λ₂ of Eq. 5, weight of ‖θ_p‖²"
    gate: Literal["block", "layer", "client"] = "block"
    "one gate per `block`, `layer` or `client`"
    gate_init: float = 0.0
    "initial gate logit a; m = σ(a)"
    gate_fixed: Share | None = None
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
    "first values of the branch; none: near zero if λ₂ penalises factors, else as LoRA's"
    penalties: Penalties = "inside"
    """the gradients of both penalties go `inside` the optimiser with that of the loss, or each
    takes a `decoupled` step of its own, as weight decay does in AdamW: θ ← θ − η ∇"""
    gate_samples: Literal["all", "held-out"] = "all"  # type: ignore[misc]
    """which samples teach the gates: `all` that a client trains on, or a stratified quarter of
    them, `held-out`, from which the private branch does not learn, and the gates from no other"""
    private_block: Literal["first", "middle", "last"] | None = None
    """the only block with the private branch and its gate (`middle`: block ⌊L/2⌋ of
    0 … L − 1); none: every block has them"""

    def check_fields(self) -> None:
        """Refuse the penalty on the residual if there is no A_p."""
        if self.private_norm == "residual" and self.private_subspace == "shared-a":
            raise ValueError(
                "private_norm: residual cannot be combined with private_subspace: shared-a, which "
                "has no A_p; choose one of them"
            )

    @property
    def adapters(self) -> Mapping[str, Any]:  # type: ignore[override]
        """A private branch behind gates."""
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
    def terms(self) -> tuple[Term, ...]:  # type: ignore[override]
        """The penalties on gates and branch."""
        decoupled = self.penalties == "decoupled"
        return (
            GatePenalty(lambda1=self.lambda1, decoupled=decoupled),
            PrivatePenalty(
                lambda2=self.lambda2, private_norm=self.private_norm, decoupled=decoupled
            ),
        )


class PrivateHead(Personalisation):
    """FedPer (Arivazhagan et al. 2019): each client has a head; everything trains together."""

    adapters: ClassVar[Mapping[str, Any]] = {"head": "private"}


class OwnHead(PrivateHead):
    """FedRep (Collins et al. 2021): each client trains its head alone, then the adapters alone."""

    head_epochs: Count = 2
    "epochs of the head alone, before the usual ones of the shared adapters alone"

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        """Return head, then adapters."""
        return (
            Phase(self.head_epochs, turns=(PRIVATE,)),
            Phase(epochs, first=self.head_epochs, turns=(SHARED,)),
        )


class GatedHead(Personalisation):
    """A client's head is (1 - m) W_g + m W_p with one gate m = sigmoid(a).

    With held-out samples the gate learns on a quarter of a client's samples from which W_p does
    not learn; adapters and W_g learn from all of them.
    """

    gate_init: float = 0.0
    "initial gate logit a; m = σ(a)"
    gate_fixed: Share | None = None
    "a gate in [0, 1] that is not learned; null: it is learned"
    gate_samples: Literal["held-out", "all"] = "held-out"  # type: ignore[misc]
    """which samples teach the gate: a stratified quarter, `held-out`, from which the private head
    does not learn, and the gate from no other; or `all` that a client trains on teach both"""

    @property
    def adapters(self) -> Mapping[str, Any]:  # type: ignore[override]
        """A gated head."""
        return {
            "head": "gated",
            "gate_init": self.gate_init,
            "gate_fixed": self.gate_fixed,
        }


class ResidualHead(Personalisation):
    """Fed-RoD (Chen & Chao 2022), linear: a client's head is W_g + W_p.

    With each batch W_p takes a step along the cross-entropy of W_g + W_p, then adapters and W_g
    one along the balanced softmax of W_g alone.
    """

    adapters: ClassVar[Mapping[str, Any]] = {"head": "residual"}

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        """Return one phase of two turns."""
        return (Phase(epochs, turns=(PRIVATE, SHARED), alone=True, balanced=True),)


class FineTune(Personalisation):
    """Before an evaluation each client tunes a copy of the global model, or of its head.

    Yu et al. (2020) tune the whole copy. FedBABU (Oh et al. 2022) freezes the head in the rounds
    and tunes it alone.
    """

    personal_epochs: Natural = 2
    "e, local epochs before evaluation; 0: clients are evaluated with the global model"
    tunes: Literal["all", "head"] = "all"
    "what trains before evaluation: `all`, or the `head` alone"
    head: Literal["shared", "frozen"] = "shared"
    """`shared`: the head trains with the rest; `frozen`: until evaluation it keeps its first
    values, drawn by seed and the same for all clients, and is not sent"""

    @property
    def adapters(self) -> Mapping[str, Any]:  # type: ignore[override]
        """A frozen head, if it is."""
        return {} if self.head == "shared" else {"head": self.head}

    @property
    def tuning(self) -> tuple[int, bool]:  # type: ignore[override]
        """Epochs of the copy or of its head."""
        return self.personal_epochs, self.tunes == "head"


class Ditto(Personalisation):
    """Ditto (Li et al. 2021): v minimises F_k(v) + lambda/2 ||v - theta_t||^2 beside theta.

    Both train on the same batches, v from where it was, theta from the downloaded theta_t. Only
    theta is sent; the client uses v.
    """

    own_start: ClassVar[str] = "download"
    mixed_weight: ClassVar[float | None] = 1.0

    strength: NonNegative = 0.1
    "λ that holds a client's own model to the global one"
    own_optimiser: Optimiser = "training"  # type: ignore[misc]
    "the client's own model moves by the optimiser of the run (`training`) or by plain `sgd`"
    penalties: Penalties = "inside"
    """the gradient λ (v − θ_t) goes `inside` the optimiser with that of the loss, or takes a
    `decoupled` step of its own: v ← v − η λ (v − θ_t)"""

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        """Return theta, then v."""
        held = PersonalProximal(strength=self.strength, decoupled=self.penalties == "decoupled")
        return (
            Phase(epochs, turns=(SHARED,), alone=True),
            Phase(epochs, turns=(PRIVATE,), terms=(held,), second=True),
        )


class Apfl(Personalisation):
    """APFL (Deng et al. 2020): clients use a v + (1 - a) w, where w is FedAvg's model.

    With each batch v goes along -grad_v f(a v + (1 - a) w), then w along -grad f(w). The mixture
    is of parameters, so of the adapters' factors and not of their products; a is fixed.
    """

    weight: Share = 0.5
    "a of v̂ = a v + (1 − a) w"
    own_optimiser: Optimiser = "training"  # type: ignore[misc]
    "the client's own model moves by the optimiser of the run (`training`) or by plain `sgd`"

    @property
    def mixed_weight(self) -> float | None:  # type: ignore[override]
        """The weight a."""
        return self.weight

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        """Return one phase of two turns."""
        return (Phase(epochs, turns=(PRIVATE, SHARED), alone=True),)


class Interpolate(Personalisation):
    """A running mix: v <- what training makes of a v + (1 - a) theta, which is sent as well.

    A client uses the mix of its v with what it would download.
    """

    own_start: ClassVar[str] = "mixture"

    weight: Share = 0.5
    "a of v ← a v + (1 − a) θ"

    @property
    def mixed_weight(self) -> float | None:  # type: ignore[override]
        """The weight a."""
        return self.weight

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        """Return the training of what is sent."""
        return (Phase(epochs, turns=(SHARED,), alone=True),)


class FrozenA(Personalisation):
    """FFA-LoRA (Sun et al. 2024): each A stays as drawn; B and the head are trained and sent."""

    adapters: ClassVar[Mapping[str, Any]] = {"factor_a": "frozen"}


class PrivateB(Personalisation):
    """FedSA-LoRA (Guo et al. 2025): each A is shared, each client has factors B of its own."""

    head: Literal["shared", "private"] = "shared"
    "one `shared` head, or a `private` one for every client, and then no global model"

    @property
    def adapters(self) -> Mapping[str, Any]:  # type: ignore[override]
        """Private factors B."""
        return {"factor_b": "private", "head": self.head}


class Alternating(Personalisation):
    """RoLoRA (Chen et al. 2025): B and head train in odd rounds, A and head in even ones."""

    adapters: ClassVar[Mapping[str, Any]] = {"alternate": True}


class DualAdapter(Personalisation):
    """FedDPA-T (Yang et al. 2024): W + s ((1 - lambda) B_u A_u + lambda B_v A_v).

    A round trains the client's own adapter v alone on that mixture, then the shared u and the head
    without v.
    """

    weight: Share = 0.5
    "λ, share of a client's own adapter v"
    personal_epochs: Count = 2
    "epochs of v alone, before the usual ones of the common adapter"

    @property
    def adapters(self) -> Mapping[str, Any]:  # type: ignore[override]
        """A private branch with a fixed gate."""
        return {
            "branch": "dual",
            "gate_fixed": self.weight,
            "composition": "mixture",
            "private_init": "lora",
        }

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        """Return v, then u."""
        return (
            Phase(self.personal_epochs, turns=(PRIVATE,)),
            Phase(epochs, first=self.personal_epochs, turns=(SHARED,), alone=True),
        )
