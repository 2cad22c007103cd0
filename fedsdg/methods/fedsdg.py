"""FedSDG, its variants with other rules, and the authors' code."""

from __future__ import annotations

from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.geometric_median import GeometricMedian
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.multikrum import MultiKrum
from fedsdg.aggregation.rules.screened import Screened
from fedsdg.federation.personalisation import DualPath
from fedsdg.methods.method import Method

FAMILY = "FedSDG"

ROWS = {
    "fedsdg": Method(
        title="FedSDG",
        rule=Alignment(),
        personalisation=DualPath(),
        undecayed=True,
        needs_adapters=True,
        fixed=("private_init", "clip_norm"),
        formula=(
            "step = Σ_k w_k Δ_k, w_k ∝ max(0, cos(Δ_k, Σ_j Δ_j)); clients minimise the "
            "cross-entropy of θ_g + m θ_p plus λ₁ Σ_l |m_l| + λ₂ ‖θ_p‖², m = σ(a)"
        ),
        source="FedSDG, Eq. 3-11",
    ),
    "fedsdg-heldout": Method(
        title="FedSDG, gates on held-out samples",
        rule=Alignment(),
        personalisation=DualPath(gate_samples="held-out"),
        undecayed=True,
        needs_adapters=True,
        fixed=("private_init", "gate_samples", "clip_norm"),
        formula=(
            "as FedSDG, but its gates learn on a quarter of a client's samples from which θ_p does "
            "not learn"
        ),
        source="FedSDG, Eq. 3-11; gates: this benchmark",
    ),
    "fedsdg+head": Method(
        title="FedSDG, own heads",
        rule=Alignment(),
        personalisation=DualPath(head="private"),
        undecayed=True,
        needs_adapters=True,
        fixed=("head", "private_init", "clip_norm"),
        formula="as FedSDG, but every client keeps a head of its own, and θ has none",
        source="FedSDG, Eq. 3-11; heads as Arivazhagan et al. 2019",
    ),
    "fedsdg-official": Method(
        title="FedSDG (authors' code)",
        rule=Mean(weights="uniform"),
        personalisation=DualPath(
            lambda1=0.01, lambda2=0.001, gate="layer", gate_init=-2.0, private_init="official"
        ),
        undecayed=True,
        needs_adapters=True,
        training={"epochs": 5, "eta_m": 0.1},
        fixed=(
            "gate",
            "private_init",
            "gate_fixed",
            "composition",
            "private_subspace",
            "private_norm",
            "head",
        ),
        formula=("step = (1/M) Σ_k Δ_k; clients as those of fedsdg, with a gate for each layer"),
        source="the authors' public code, June 2026, its defaults",
    ),
    "fedsdg-official-aligned": Method(
        title="FedSDG (authors' code, aligned)",
        rule=Alignment(reference="leave_one_out", transform="softmax"),
        personalisation=DualPath(
            lambda1=0.01, lambda2=0.001, gate="layer", gate_init=-2.0, private_init="official"
        ),
        undecayed=True,
        needs_adapters=True,
        training={"epochs": 5, "eta_m": 0.1},
        fixed=(
            "reference",
            "transform",
            "epsilon",
            "max_weight",
            "smoothing",
            "scope",
            "clip_norm",
            "gate",
            "private_init",
            "gate_fixed",
            "composition",
            "private_subspace",
            "private_norm",
            "head",
        ),
        formula=(
            "step = Σ_k w_k Δ_k, w_k ∝ exp(cos(Δ_k, Σ_{j≠k} Δ_j) / τ); clients as those "
            "of fedsdg, with a gate for each layer"
        ),
        source="the authors' public code, June 2026, with its alignment switched on",
    ),
    "fedsdg+screened": Method(
        title="FedSDG (screened)",
        rule=Screened(inner=Alignment()),
        personalisation=DualPath(),
        undecayed=True,
        needs_adapters=True,
        fixed=("private_init", "clip_norm"),
        formula="as FedSDG, of the clients that are not blocked",
        source="FedSDG, Eq. 3-11; the chapter on robust aggregation",
    ),
    "fedsdg+geometric-median": Method(
        title="FedSDG + geometric median",
        rule=GeometricMedian(),
        personalisation=DualPath(),
        undecayed=True,
        needs_adapters=True,
        fixed=("private_init",),
        formula="step = argmin_z Σ_k ‖z − Δ_k‖; clients as in FedSDG",
        source="FedSDG, Eq. 3-9; Pillutla et al. 2022",
    ),
    "fedsdg+multikrum": Method(
        title="FedSDG + Multi-Krum",
        rule=MultiKrum(),
        personalisation=DualPath(),
        undecayed=True,
        needs_adapters=True,
        fixed=("private_init",),
        formula=("step = mean of the M − f updates that Multi-Krum takes; clients as in FedSDG"),
        source="FedSDG, Eq. 3-9; Blanchard et al. 2017",
    ),
}
