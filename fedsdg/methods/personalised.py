"""A model of its own for every client, whatever is trained."""

from __future__ import annotations

from fedsdg.aggregation.rules.mean import Mean
from fedsdg.federation.personalisation import (
    Apfl,
    Ditto,
    FineTune,
    GatedHead,
    Interpolate,
    OwnHead,
    PrivateHead,
    ResidualHead,
)
from fedsdg.methods.method import Method

FAMILY = "Personal models"

ROWS = {
    "fine-tune": Method(
        title="FedAvg + fine-tuning",
        rule=Mean(),
        personalisation=FineTune(),
        formula=("step = Σ_k n_k Δ_k / Σ_j n_j; a client is evaluated after e epochs of its own"),
        source="Yu et al. 2020",
    ),
    "fedbabu": Method(
        title="FedBABU",
        rule=Mean(),
        personalisation=FineTune(tunes="head", head="frozen"),
        fixed=("head",),
        formula=(
            "step = Σ_k n_k Δ_k / Σ_j n_j, all but the head, which stays as drawn; a client is "
            "evaluated after e epochs of a head of its own"
        ),
        source="Oh et al. 2022",
    ),
    "fedrep": Method(
        title="FedRep",
        rule=Mean(),
        personalisation=OwnHead(),
        formula=(
            "step = Σ_k n_k Δ_k / Σ_j n_j, all but the head; a client trains its own "
            "head, then the rest"
        ),
        source="Collins et al. 2021",
    ),
    "fedper": Method(
        title="FedPer",
        rule=Mean(),
        personalisation=PrivateHead(),
        formula=(
            "step = Σ_k n_k Δ_k / Σ_j n_j, all but the head; a client trains its own head"
            " and the rest together"
        ),
        source="Arivazhagan et al. 2019",
    ),
    "gated-head": Method(
        title="Gated head",
        rule=Mean(weights="uniform"),
        personalisation=GatedHead(),
        needs_adapters=True,
        fixed=("gate_samples",),
        formula=(
            "step = (1/M) Σ_k Δ_k; a client's head is (1 − m) W_g + m W_p, its gate m learned on a "
            "quarter of its samples from which its own W_p does not learn"
        ),
        source="this benchmark",
    ),
    "gated-head-train": Method(
        title="Gated head (no held-out part)",
        rule=Mean(weights="uniform"),
        personalisation=GatedHead(gate_samples="all"),
        needs_adapters=True,
        fixed=("gate_samples",),
        formula="as gated-head, but all samples teach gate and W_p alike",
        source="this benchmark, a control",
    ),
    "fed-rod": Method(
        title="Fed-RoD",
        rule=Mean(),
        personalisation=ResidualHead(),
        needs_adapters=True,
        formula=(
            "step = Σ_k n_k Δ_k / Σ_j n_j; adapters and W_g minimise the balanced softmax of W_g "
            "alone, a client's own W_p the cross-entropy of W_g + W_p, step by step"
        ),
        source="Chen & Chao 2022, linear",
    ),
    "ditto": Method(
        title="Ditto",
        rule=Mean(),
        personalisation=Ditto(),
        formula=(
            "step = Σ_k n_k Δ_k / Σ_j n_j; clients use v_k, trained beside θ_k to "
            "minimise the cross-entropy + λ/2 ‖v_k − θ‖²"
        ),
        source="Li et al. 2021",
    ),
    "interpolate": Method(
        title="Running mix",
        rule=Mean(),
        personalisation=Interpolate(),
        formula=(
            "step = Σ_k n_k Δ_k / Σ_j n_j; clients use, and begin at, a v_k + (1 − a) θ, "
            "v_k what they trained last"
        ),
        source="the chapter on personalisation; mixture as Deng et al. 2020",
    ),
    "apfl": Method(
        title="APFL",
        rule=Mean(weights="uniform"),
        personalisation=Apfl(),
        formula=(
            "step = (1/M) Σ_k Δ_k; clients use a v_k + (1 − a) θ, v_k trained beside θ_k "
            "along −∇_v of the cross-entropy of a v_k + (1 − a) θ_k, step by step"
        ),
        source="Deng et al. 2020",
    ),
}
