"""Personalisations: which parameters stay with the client, and how its own model is made.

A personalisation is data. It says what the adapter layout holds in private and how many epochs
a client trains its copy before it is evaluated; nothing else in the package asks which method
it serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Personalisation:
    """``adapters``: settings of ``AdapterConfig``; ``epochs``: local epochs before evaluation."""

    adapters: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = 0


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
) -> Personalisation:
    """FedSDG: a private LoRA branch behind a learned gate, θ_g + m · θ_p (Eq. 3-4).

    With ``private_norm="factors"`` the branch starts near zero, since its factors are penalised
    themselves; with the other norms it has the usual LoRA start.
    """
    return Personalisation(
        adapters={
            "branch": "dual",
            "gate": gate,
            "gate_init": gate_init,
            "gate_fixed": gate_fixed,
            "composition": composition,
            "private_subspace": private_subspace,
            "private_init": "near-zero" if private_norm == "factors" else "lora",
            "private_a_trainable": private_norm != "b-only",
        }
    )


def local_only() -> Personalisation:
    """Every parameter is private: nothing is sent and there is no global model."""
    return Personalisation(adapters={"local": True})


def fine_tune(epochs: int) -> Personalisation:
    """At evaluation every client trains a copy of the global model for ``epochs`` epochs."""
    return Personalisation(epochs=epochs)
