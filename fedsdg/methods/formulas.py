"""The formula of every method.

θ is the server's model with its d communicated parameters, θ_k what client k makes of it,
Δ_k = θ_k − θ the update of one of the M clients of a round, n_k its training samples, and step
what the server adds to θ. Clients minimise the cross-entropy unless something else is said. K are
all clients of the federation.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_MEAN = "step = Σ_k n_k Δ_k / Σ_j n_j"
_UNIFORM = "step = (1/M) Σ_k Δ_k"

FORMULAS: Mapping[str, str] = MappingProxyType(
    {
        "fedsdg": (
            "step = Σ_k w_k Δ_k, w_k ∝ max(0, cos(Δ_k, Σ_j Δ_j)); clients minimise the "
            "cross-entropy of θ_g + m θ_p plus λ₁ Σ_l |m_l| + λ₂ ‖θ_p‖², m = σ(a)"
        ),
        "fedsdg-heldout": (
            "as FedSDG, but its gates learn on a quarter of a client's samples from which θ_p "
            "does not learn"
        ),
        "fedsdg+head": "as FedSDG, but every client keeps a head of its own, and θ has none",
        "fedsdg-official": f"{_UNIFORM}; clients as those of fedsdg, with a gate for each layer",
        "fedsdg-official-aligned": (
            "step = Σ_k w_k Δ_k, w_k ∝ exp(cos(Δ_k, Σ_{j≠k} Δ_j) / τ); clients as those of "
            "fedsdg, with a gate for each layer"
        ),
        "fedsdg+screened": "as FedSDG, of the clients that are not blocked",
        "fedsdg+geometric-median": "step = argmin_z Σ_k ‖z − Δ_k‖; clients as in FedSDG",
        "fedsdg+multikrum": (
            "step = mean of the M − f updates that Multi-Krum takes; clients as in FedSDG"
        ),
        "fedavg": _MEAN,
        "fedavg-uniform": _UNIFORM,
        "fedavg-sgd": _UNIFORM,
        "fedprox": f"{_MEAN}; clients minimise the cross-entropy + μ/2 ‖θ_k − θ‖²",
        "fedprox-inexact": (
            f"{_MEAN}; clients minimise h_k = cross-entropy + μ/2 ‖θ_k − θ‖² until ‖∇h_k‖ is at "
            f"most γ_k times what it was at θ, γ_k its own"
        ),
        "scaffold": (
            f"{_UNIFORM}, c += (1/K) Σ_k Δc_k; clients go θ_k −= η (g_k − c_k + c), Δc_k = −c − "
            f"Δ_k / (steps · η)"
        ),
        "fedsgd": f"{_MEAN}; clients take one step along their full gradient",
        "fedcurv": (
            f"{_MEAN}; clients minimise the cross-entropy + λ Σ_{{j≠k}} (θ_k − θ_j)ᵀ diag(I_j) "
            f"(θ_k − θ_j), I_j their mean squared gradients"
        ),
        "krum": "step = the Δ_k with the least sum of squared distances to M − f − 2 others",
        "multikrum": "step = mean of the M − f updates with the least of Krum's sums, or of m",
        "geometric-median": "step = argmin_z Σ_k ‖z − Δ_k‖",
        "coordinate-median": "step_j = median_k Δ_kj",
        "trimmed-mean": "step_j = mean_k Δ_kj without the f largest and the f smallest",
        "screened": (
            "step = mean of the Δ_k of clients not blocked; blocked is who in `strikes` rounds in "
            "a row was an outlier by distance from the geometric median, or by angle"
        ),
        "fine-tune": f"{_MEAN}; a client is evaluated after e epochs of its own",
        "fedbabu": (
            f"{_MEAN}, all but the head, which stays as drawn; a client is evaluated after e "
            f"epochs of a head of its own"
        ),
        "fedrep": f"{_MEAN}, all but the head; a client trains its own head, then the rest",
        "fedper": f"{_MEAN}, all but the head; a client trains its own head and the rest together",
        "gated-head": (
            f"{_UNIFORM}; a client's head is (1 − m) W_g + m W_p, its gate m learned on a quarter "
            f"of its samples from which its own W_p does not learn"
        ),
        "gated-head-train": "as gated-head, but all samples teach gate and W_p alike",
        "fed-rod": (
            f"{_MEAN}; adapters and W_g minimise the balanced softmax of W_g alone, a client's own "
            f"W_p the cross-entropy of W_g + W_p, step by step"
        ),
        "ditto": (
            f"{_MEAN}; clients use v_k, trained beside θ_k to minimise the cross-entropy + λ/2 "
            f"‖v_k − θ‖²"
        ),
        "interpolate": (
            f"{_MEAN}; clients use, and begin at, a v_k + (1 − a) θ, v_k what they trained last"
        ),
        "apfl": (
            f"{_UNIFORM}; clients use a v_k + (1 − a) θ, v_k trained beside θ_k along −∇_v of the "
            f"cross-entropy of a v_k + (1 − a) θ_k, step by step"
        ),
        "ffa-lora": f"{_UNIFORM}; A is drawn once and never trained, B and the head are",
        "fedsa-lora": (
            f"{_UNIFORM}, of A and the head; a client has W + (α/r) B_k A with a B_k of its own, "
            f"trained together with the rest"
        ),
        "rolora": (
            f"{_UNIFORM}, of B and the head in odd rounds, of A and the head in even ones, in "
            f"which the other factor rests"
        ),
        "feddpa": (
            f"{_UNIFORM}; a client trains an adapter v_k of its own in W + (1 − λ) u + λ v_k, "
            f"which it uses, then u and the head without v_k"
        ),
        "clustered": (
            "θ_c = Σ_k n_k θ_k / Σ_j n_j over the cohort's clients of cluster c; a client moves "
            "to the cluster whose model has the lowest loss on its data"
        ),
        "semi-global": (
            "as Clusters, but clients of cluster c start from (1 − β) θ_c + β mean_c θ_c; with P "
            "partial aggregates the mean is over the clusters of c's group, of P groups of "
            "clusters nearest to each other"
        ),
        "pens": (
            "a client starts from the mean of its own last model and of others': first of the m "
            "with the lowest loss on its data of l that it tried, later of its neighbours', those "
            "it picked more often than m/l of the times"
        ),
        "cgsv": (
            "step = mean_k ‖Δ_k‖ · U, U = Σ_k r_k Δ_k/‖Δ_k‖ / Σ_j r_j; r_k ← γ_t r_k + (1 − γ_t) "
            "cos(Δ_k, U), at least the floor"
        ),
        "cgsv-xu": (
            "θ_k += the q_k entries of U of largest magnitude, U = Γ Σ_j r_j Δ_j/‖Δ_j‖; r_k ← α "
            "r_k + (1 − α) cos(Δ_k, U), at least the floor, divided by their sum; q_k = ⌊d tanh(β "
            "r_k) / max_j tanh(β r_j)⌋; a model θ_k for every client, all of whom take part and "
            "download these entries, and a bit for each of d that says which"
        ),
        "focus": (
            "step = Σ_k w_k Δ_k, w_k ∝ n_k C_k, C = 1 − softmax(a E), E_k = loss of θ_k on the "
            "server's samples + loss of θ on the client's"
        ),
        "data-sharing": (
            f"{_MEAN}; every client trains on its own samples and on a share of everybody else's: "
            f"no privacy for these"
        ),
        "centralised": "one place trains on all samples, as many in a round as the cohort would",
        "local-only": "step = 0; every client trains a model of its own",
    }
)
