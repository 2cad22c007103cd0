"""Rivals that treat the two factors of an adapter apart."""

from __future__ import annotations

from fedsdg.aggregation.rules.mean import Mean
from fedsdg.federation.personalisation import Alternating, DualAdapter, FrozenA, PrivateB
from fedsdg.methods.method import Method

FAMILY = "Within LoRA"

ROWS = {
    "ffa-lora": Method(
        title="FFA-LoRA",
        rule=Mean(weights="uniform"),
        personalisation=FrozenA(),
        needs_adapters=True,
        formula=("step = (1/M) Σ_k Δ_k; A is drawn once and never trained, B and the head are"),
        source="Sun et al. 2024",
    ),
    "fedsa-lora": Method(
        title="FedSA-LoRA",
        rule=Mean(weights="uniform"),
        personalisation=PrivateB(),
        needs_adapters=True,
        formula=(
            "step = (1/M) Σ_k Δ_k, of A and the head; a client has W + (α/r) B_k A with a"
            " B_k of its own, trained together with the rest"
        ),
        source="Guo et al. 2025",
    ),
    "rolora": Method(
        title="RoLoRA",
        rule=Mean(weights="uniform"),
        personalisation=Alternating(),
        needs_adapters=True,
        formula=(
            "step = (1/M) Σ_k Δ_k, of B and the head in odd rounds, of A and the head in "
            "even ones, in which the other factor rests"
        ),
        source="Chen et al. 2025",
    ),
    "feddpa": Method(
        title="FedDPA-T",
        rule=Mean(weights="uniform"),
        personalisation=DualAdapter(),
        needs_adapters=True,
        formula=(
            "step = (1/M) Σ_k Δ_k; a client trains an adapter v_k of its own in W + (1 − "
            "λ) u + λ v_k, which it uses, then u and the head without v_k"
        ),
        source="Yang et al. 2024, FedDPA-T",
    ),
}
