"""Weights by what clients contribute."""

from __future__ import annotations

from fedsdg.aggregation.rules.cgsv import Cgsv
from fedsdg.aggregation.rules.cgsv_xu import CgsvXu
from fedsdg.aggregation.rules.focus import Focus
from fedsdg.methods.method import Method

FAMILY = "Contribution"

ROWS = {
    "cgsv": Method(
        title="CGSV",
        rule=Cgsv(),
        formula=(
            "step = mean_k ‖Δ_k‖ · U, U = Σ_k r_k Δ_k/‖Δ_k‖ / Σ_j r_j; r_k ← γ_t r_k + (1"
            " − γ_t) cos(Δ_k, U), at least the floor"
        ),
        source="Xu et al. 2021, as in the chapter on contribution",
    ),
    "cgsv-xu": Method(
        title="CGSV (as published)",
        rule=CgsvXu(),
        formula=(
            "θ_k += the q_k entries of U of largest magnitude, U = Γ Σ_j r_j Δ_j/‖Δ_j‖; "
            "r_k ← α r_k + (1 − α) cos(Δ_k, U), at least the floor, divided by their sum;"
            " q_k = ⌊d tanh(β r_k) / max_j tanh(β r_j)⌋; a model θ_k for every client, "
            "all of whom take part and download these entries, and a bit for each of d "
            "that says which"
        ),
        source="Xu et al. 2021",
    ),
    "focus": Method(
        title="FOCUS",
        rule=Focus(),
        formula=(
            "step = Σ_k w_k Δ_k, w_k ∝ n_k C_k, C = 1 − softmax(a E), E_k = loss of θ_k "
            "on the server's samples + loss of θ on the client's"
        ),
        source="Chen et al. 2020",
    ),
}
