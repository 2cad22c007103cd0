"""Personalisations: which parameters stay with the client, and how its own model is made.

A personalisation is data. It says what the adapter layout holds in private, how many epochs a
client trains its copy before it is evaluated, and what model it keeps for itself; nothing else in
the package asks which method it serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedsdg.federation.own_models.own_model import Ditto, Interpolation, OwnModel


@dataclass(frozen=True)
class Personalisation:
    """``adapters``: settings of ``AdapterConfig``; ``epochs``: local epochs before evaluation.

    ``private_first``: local epochs in which only what is private moves, before the usual ones, in
    which only what is shared does; 0: both move together. ``interleaved``: with every batch the
    private part moves, then the shared one; ``shared_alone``: where the shared part moves alone, it
    learns without the private one (see ``LocalWork``). ``mixture``: the share of a whole private
    model in what a client uses (see ``MixedModel``); None: there is none. ``anchors``: how many of
    a client's training images weigh its adapters against the common ones, image by image, when it
    is judged (see ``InstanceMixture``); 0: none do. ``own``: the model that a client keeps beside
    the one it trains for the server.
    """

    adapters: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = 0
    private_first: int = 0
    interleaved: bool = False
    shared_alone: bool = False
    mixture: float | None = None
    anchors: int = 0
    own: OwnModel = field(default_factory=OwnModel)


def shared() -> Personalisation:
    """Every client uses the global model."""
    return Personalisation()


def dual_path(
    gate: str = "block",
    gate_init: float = 0.0,
    gate_fixed: float | None = None,
    composition: str = "residual",
    private_subspace: str = "own",
    private_norm: str = "factors",
    private_init: str | None = None,
    head: str = "shared",
) -> Personalisation:
    """FedSDG: a private LoRA branch behind a learned gate, θ_g + m · θ_p (Eq. 3-4).

    Unless ``private_init`` says otherwise the branch starts near zero where its factors are
    penalised themselves (``private_norm="factors"``), and has the usual LoRA start with the other
    norms. ``head="private"`` leaves every client its own head.
    """
    return Personalisation(
        adapters={
            "branch": "dual",
            "gate": gate,
            "gate_init": gate_init,
            "gate_fixed": gate_fixed,
            "composition": composition,
            "private_subspace": private_subspace,
            "private_init": private_init or ("near-zero" if private_norm == "factors" else "lora"),
            "private_a_trainable": private_norm != "b-only",
            "head": head,
        }
    )


def local_only() -> Personalisation:
    """Every parameter is private: nothing is sent and there is no global model."""
    return Personalisation(adapters={"local": True})


def fine_tune(epochs: int) -> Personalisation:
    """At evaluation every client trains a copy of the global model for ``epochs`` epochs."""
    return Personalisation(epochs=epochs)


def own_head(head_epochs: int) -> Personalisation:
    """FedRep (Collins et al. 2021): every client has its own head on a common representation.

    A round trains the head alone for ``head_epochs`` epochs, then the shared adapters alone for
    the usual ones. A client that has never taken part is judged with the head all started from.
    """
    return Personalisation(adapters={"head": "private"}, private_first=head_epochs)


def private_head() -> Personalisation:
    """FedPer (Arivazhagan et al. 2019): own heads as in FedRep, but everything trains jointly."""
    return Personalisation(adapters={"head": "private"})


def frozen_a() -> Personalisation:
    """FFA-LoRA (Sun et al. 2024): every A stays as drawn; B and the head are trained and sent.

    The mean of the products B_k A is then the product of the mean B with A.
    """
    return Personalisation(adapters={"factor_a": "frozen"})


def private_b(head: str = "shared") -> Personalisation:
    """FedSA-LoRA (Guo et al. 2025): the A's are shared, every client keeps B's of its own.

    A client that has never taken part has B = 0: the frozen backbone with the head. ``head`` may be
    "private" too, as the authors have it for classification.
    """
    return Personalisation(adapters={"factor_b": "private", "head": head})


def alternating() -> Personalisation:
    """RoLoRA (Chen et al. 2025): B and the head train in odd rounds, A and the head in even ones.

    Only what trains is sent, so the mean of the products is the product of the means. A client that
    sat out the round before lacks both factors and downloads them. (The authors' code freezes the
    head; a head that starts at random has to learn.)
    """
    return Personalisation(adapters={"alternate": True})


def apfl(weight: float) -> Personalisation:
    """APFL (Deng et al. 2020): clients use v̂ = a v + (1 − a) w, w being FedAvg's.

    With every batch v goes along −∇_v f(v̂), which is −a ∇f(v̂), at the w of that moment; then w goes
    along −∇f(w). v begins as the common initialisation. The mixture is of parameters, so of the
    adapters' factors and not of their products, and a is fixed.
    """
    return Personalisation(mixture=weight, interleaved=True, shared_alone=True)


def dual_adapter(weight: float, personal_epochs: int, mixture: str = "fixed") -> Personalisation:
    """FedDPA-T (Yang et al. 2024): an adapter u for all, one v for each, and their mixture.

    A client's weight is W + s ((1 − λ) B_u A_u + λ B_v A_v), λ the ``weight``. A round trains v
    alone on that mixture for ``personal_epochs``, then u and the head, without v, for the usual
    ones. v starts as any LoRA does, from one draw for all clients. With ``mixture="per-sample"`` a
    client is judged with α_i = λ · mean cosine of image i and five of its training images in place
    of λ; training is the same.
    """
    return Personalisation(
        adapters={
            "branch": "dual",
            "gate_fixed": weight,
            "composition": "mixture",
            "private_init": "lora",
        },
        private_first=personal_epochs,
        shared_alone=True,
        anchors=5 if mixture == "per-sample" else 0,
    )


def ditto(strength: float) -> Personalisation:
    """Ditto (Li et al. 2021): beside FedAvg's model a client trains its own, held near to it."""
    return Personalisation(own=Ditto(strength))


def interpolate(weight: float | None) -> Personalisation:
    """Every client keeps a running mix of its model and the aggregate; None learns the weight."""
    return Personalisation(own=Interpolation(weight))
