"""FedAvg and what changes its clients or its server, with one model for all."""

from __future__ import annotations

from fedsdg.aggregation.rules.fedcurv import FedCurv
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.scaffold import Scaffold
from fedsdg.federation.stopping import Inexactness
from fedsdg.federation.terms import ControlVariates, Curvature, Proximal
from fedsdg.methods.method import Method

FAMILY = "Averaging"

ROWS = {
    "fedavg": Method(
        title="FedAvg (samples)",
        rule=Mean(),
        formula="step = Σ_k n_k Δ_k / Σ_j n_j",
        source="McMahan et al. 2017",
    ),
    "fedavg-uniform": Method(
        title="FedAvg (uniform)",
        rule=Mean(weights="uniform"),
        fixed=("weights",),
        formula="step = (1/M) Σ_k Δ_k",
        source="McMahan et al. 2017",
    ),
    "fedavg-sgd": Method(
        title="FedAvg (SGD)",
        rule=Mean(weights="uniform"),
        optimiser="sgd",
        formula="step = (1/M) Σ_k Δ_k",
        source="McMahan et al. 2017",
    ),
    "fedprox": Method(
        title="FedProx",
        rule=Mean(),
        objective=(Proximal(),),
        formula=(
            "step = Σ_k n_k Δ_k / Σ_j n_j; clients minimise the cross-entropy + μ/2 ‖θ_k − θ‖²"
        ),
        source="Li et al. 2020",
    ),
    "fedprox-inexact": Method(
        title="FedProx (γ-inexact)",
        rule=Mean(),
        objective=(Proximal(),),
        stopping=Inexactness(),
        formula=(
            "step = Σ_k n_k Δ_k / Σ_j n_j; clients minimise h_k = cross-entropy + μ/2 "
            "‖θ_k − θ‖² until ‖∇h_k‖ is at most γ_k times what it was at θ, γ_k its own"
        ),
        source="Li et al. 2020, Definition 2",
    ),
    "scaffold": Method(
        title="SCAFFOLD",
        rule=Scaffold(),
        objective=(ControlVariates(),),
        optimiser="sgd",
        formula=(
            "step = (1/M) Σ_k Δ_k, c += (1/K) Σ_k Δc_k; clients go θ_k −= η (g_k − c_k + "
            "c), Δc_k = −c − Δ_k / (steps · η)"
        ),
        source="Karimireddy et al. 2020, option II",
    ),
    "fedsgd": Method(
        title="FedSGD",
        rule=Mean(),
        optimiser="sgd",
        training={"epochs": 1, "batch_size": None},
        formula=("step = Σ_k n_k Δ_k / Σ_j n_j; clients take one step along their full gradient"),
        source="McMahan et al. 2017: one full-batch gradient per round",
    ),
    "fedcurv": Method(
        title="FedCurv",
        rule=FedCurv(),
        objective=(Curvature(),),
        formula=(
            "step = Σ_k n_k Δ_k / Σ_j n_j; clients minimise the cross-entropy + λ Σ_{j≠k}"
            " (θ_k − θ_j)ᵀ diag(I_j) (θ_k − θ_j), I_j their mean squared gradients"
        ),
        source="Shoham et al. 2019",
    ),
}
