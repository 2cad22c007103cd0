"""The methods: which rule, terms and personalisation each is made of, by family.

The string below a row is its source and, after an empty line, its formula, in this notation:

θ is the server's model with its d communicated parameters, θ_k what client k makes of it,
Δ_k = θ_k − θ the update of one of the M clients of a round, n_k its training samples, and step
what the server adds to θ. Clients minimise the cross-entropy unless something else is said. K are
all clients of the federation.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from fedsdg.aggregation.rules.alignment import Alignment
from fedsdg.aggregation.rules.cgsv import Cgsv
from fedsdg.aggregation.rules.cgsv_xu import CgsvXu
from fedsdg.aggregation.rules.clusters import Clustered
from fedsdg.aggregation.rules.fedcurv import FedCurv
from fedsdg.aggregation.rules.focus import Focus
from fedsdg.aggregation.rules.geometric_median import GeometricMedian
from fedsdg.aggregation.rules.krum import Krum
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.median import CoordinateMedian
from fedsdg.aggregation.rules.multikrum import MultiKrum
from fedsdg.aggregation.rules.neighbours import Pens
from fedsdg.aggregation.rules.no_aggregation import NoAggregation
from fedsdg.aggregation.rules.scaffold import Scaffold
from fedsdg.aggregation.rules.screened import Screened
from fedsdg.aggregation.rules.trimmed_mean import TrimmedMean
from fedsdg.federation import personalisation as personal
from fedsdg.federation.data_sharing import Central, SharedSamples
from fedsdg.federation.stopping import Inexactness
from fedsdg.federation.terms import ControlVariates, Curvature, Proximal
from fedsdg.methods.method import Method

FAMILIES: dict[str, dict[str, Method]] = {}
"""The methods of a family by name, by the family's title, in the order of tables and figures."""
_UNIFORM = Mean(weights="uniform")
_OFFICIAL = personal.DualPath(
    lambda1=0.01, lambda2=0.001, gate="layer", gate_init=-2.0, private_init="official"
)
_OFFICIAL_FIXED = (
    "gate",
    "private_init",
    "gate_fixed",
    "composition",
    "private_subspace",
    "private_norm",
    "head",
)


# --- FedSDG ---------------------------------------------------------------------------------------

FEDSDG = FAMILIES.setdefault("FedSDG", {})

FEDSDG["fedsdg"] = Method(
    "FedSDG", Alignment(), personalisation=personal.DualPath(), fixed=("private_init", "clip_norm")
)
"""FedSDG, Eq. 3-11.

step = Σ_k w_k Δ_k, w_k ∝ max(0, cos(Δ_k, Σ_j Δ_j)); clients minimise the cross-entropy
of θ_g + m θ_p plus λ₁ Σ_l |m_l| + λ₂ ‖θ_p‖², m = σ(a)
"""

FEDSDG["fedsdg-heldout"] = Method(
    "FedSDG, gates on held-out samples",
    Alignment(),
    personalisation=personal.DualPath(gate_samples="held-out"),
    fixed=("private_init", "gate_samples", "clip_norm"),
)
"""FedSDG, Eq. 3-11; gates: this benchmark.

as FedSDG, but its gates learn on a quarter of a client's samples from which θ_p does
not learn
"""

FEDSDG["fedsdg+head"] = Method(
    "FedSDG, own heads",
    Alignment(),
    personalisation=personal.DualPath(head="private"),
    fixed=("head", "private_init", "clip_norm"),
)
"""FedSDG, Eq. 3-11; heads as Arivazhagan et al. 2019.

as FedSDG, but every client keeps a head of its own, and θ has none
"""

FEDSDG["fedsdg-official"] = Method(
    "FedSDG (authors' code)",
    _UNIFORM,
    personalisation=_OFFICIAL,
    training={"epochs": 5, "eta_m": 0.1},
    fixed=_OFFICIAL_FIXED,
)
"""The authors' public code, June 2026, its defaults; no weight decay, and A's start is ours.

step = (1/M) Σ_k Δ_k; clients as those of fedsdg, with a gate for each layer
"""

FEDSDG["fedsdg-official-aligned"] = Method(
    "FedSDG (authors' code, aligned)",
    Alignment(reference="leave_one_out", transform="softmax", scope="adapters"),
    personalisation=_OFFICIAL,
    training={"epochs": 5, "eta_m": 0.1},
    fixed=(
        "reference",
        "transform",
        "epsilon",
        "max_weight",
        "smoothing",
        "scope",
        "clip_norm",
        *_OFFICIAL_FIXED,
    ),
    numerics=1,
)
"""The authors' public code, June 2026, with its alignment switched on.

step = Σ_k w_k Δ_k, w_k ∝ exp(cos(Δ_k, Σ_{j≠k} Δ_j) / τ); clients as those of fedsdg,
with a gate for each layer
"""

FEDSDG["fedsdg+screened"] = Method(
    "FedSDG (screened)",
    Screened(inner=Alignment()),
    personalisation=personal.DualPath(),
    fixed=("private_init", "clip_norm"),
)
"""FedSDG, Eq. 3-11; the chapter on robust aggregation.

as FedSDG, of the clients that are not blocked
"""

FEDSDG["fedsdg+geometric-median"] = Method(
    "FedSDG + geometric median",
    GeometricMedian(),
    personalisation=personal.DualPath(),
    fixed=("private_init",),
)
"""FedSDG, Eq. 3-9; Pillutla et al. 2022.

step = argmin_z Σ_k ‖z − Δ_k‖; clients as in FedSDG
"""

FEDSDG["fedsdg+multikrum"] = Method(
    "FedSDG + Multi-Krum", MultiKrum(), personalisation=personal.DualPath(), fixed=("private_init",)
)
"""FedSDG, Eq. 3-9; Blanchard et al. 2017.

step = mean of the M − f updates that Multi-Krum takes; clients as in FedSDG
"""

# --- Averaging ------------------------------------------------------------------------------------

AVERAGING = FAMILIES.setdefault("Averaging", {})

AVERAGING["fedavg"] = Method("FedAvg (samples)")
"""McMahan et al. 2017.

step = Σ_k n_k Δ_k / Σ_j n_j
"""

AVERAGING["fedavg-uniform"] = Method("FedAvg (uniform)", _UNIFORM, fixed=("weights",))
"""McMahan et al. 2017.

step = (1/M) Σ_k Δ_k
"""

AVERAGING["fedavg-sgd"] = Method("FedAvg (SGD)", _UNIFORM, optimiser="sgd")
"""McMahan et al. 2017.

step = (1/M) Σ_k Δ_k
"""

AVERAGING["fedprox"] = Method("FedProx", objective=(Proximal(),))
"""Li et al. 2020.

step = Σ_k n_k Δ_k / Σ_j n_j; clients minimise the cross-entropy + μ/2 ‖θ_k − θ‖²
"""

AVERAGING["fedprox-inexact"] = Method(
    "FedProx (γ-inexact)", objective=(Proximal(),), stopping=Inexactness()
)
"""Li et al. 2020, Definition 2.

step = Σ_k n_k Δ_k / Σ_j n_j; clients minimise h_k = cross-entropy + μ/2 ‖θ_k − θ‖²
until ‖∇h_k‖ is at most γ_k times what it was at θ, γ_k its own
"""

AVERAGING["scaffold"] = Method(
    "SCAFFOLD", Scaffold(), objective=(ControlVariates(),), optimiser="sgd"
)
"""Karimireddy et al. 2020, option II.

step = (1/M) Σ_k Δ_k, c += (1/K) Σ_k Δc_k; clients go θ_k −= η (g_k − c_k + c), Δc_k =
−c − Δ_k / (steps · η)
"""

AVERAGING["fedsgd"] = Method("FedSGD", optimiser="sgd", training={"epochs": 1, "batch_size": None})
"""McMahan et al. 2017: one full-batch gradient per round.

step = Σ_k n_k Δ_k / Σ_j n_j; clients take one step along their full gradient
"""

AVERAGING["fedcurv"] = Method("FedCurv", FedCurv(), objective=(Curvature(),))
"""Shoham et al. 2019.

step = Σ_k n_k Δ_k / Σ_j n_j; clients minimise the cross-entropy + λ Σ_{j≠k} (θ_k −
θ_j)ᵀ diag(I_j) (θ_k − θ_j), I_j their mean squared gradients
"""

# --- Robust rules ---------------------------------------------------------------------------------

ROBUST = FAMILIES.setdefault("Robust rules", {})

ROBUST["krum"] = Method("Krum", Krum())
"""Blanchard et al. 2017.

step = the Δ_k with the least sum of squared distances to M − f − 2 others
"""

ROBUST["multikrum"] = Method("Multi-Krum", MultiKrum())
"""Blanchard et al. 2017.

step = mean of the M − f updates with the least of Krum's sums, or of m
"""

ROBUST["geometric-median"] = Method("Geometric median", GeometricMedian())
"""Pillutla et al. 2022; Weiszfeld 1937.

step = argmin_z Σ_k ‖z − Δ_k‖
"""

ROBUST["coordinate-median"] = Method("Coordinate median", CoordinateMedian())
"""Yin et al. 2018.

step_j = median_k Δ_kj
"""

ROBUST["trimmed-mean"] = Method("Trimmed mean", TrimmedMean())
"""Yin et al. 2018.

step_j = mean_k Δ_kj without the f largest and the f smallest
"""

ROBUST["screened"] = Method("Mean (screened)", Screened(inner=_UNIFORM))
"""The chapter on robust aggregation.

step = mean of the Δ_k of clients not blocked; blocked is who in `strikes` rounds in a
row was an outlier by distance from the geometric median, or by angle
"""

# --- Personal models ------------------------------------------------------------------------------

PERSONAL = FAMILIES.setdefault("Personal models", {})

PERSONAL["fine-tune"] = Method("FedAvg + fine-tuning", personalisation=personal.FineTune())
"""Yu et al. 2020.

step = Σ_k n_k Δ_k / Σ_j n_j; a client is evaluated after e epochs of its own
"""

PERSONAL["fedbabu"] = Method(
    "FedBABU", personalisation=personal.FineTune(tunes="head", head="frozen"), fixed=("head",)
)
"""Oh et al. 2022.

step = Σ_k n_k Δ_k / Σ_j n_j, all but the head, which stays as drawn; a client is
evaluated after e epochs of a head of its own
"""

PERSONAL["fedrep"] = Method("FedRep", personalisation=personal.OwnHead())
"""Collins et al. 2021.

step = Σ_k n_k Δ_k / Σ_j n_j, all but the head; a client trains its own head, then the
rest
"""

PERSONAL["fedper"] = Method("FedPer", personalisation=personal.PrivateHead())
"""Arivazhagan et al. 2019.

step = Σ_k n_k Δ_k / Σ_j n_j, all but the head; a client trains its own head and the
rest together
"""

PERSONAL["gated-head"] = Method(
    "Gated head", _UNIFORM, personalisation=personal.GatedHead(), fixed=("gate_samples",)
)
"""This benchmark.

step = (1/M) Σ_k Δ_k; a client's head is (1 − m) W_g + m W_p, its gate m learned on a
quarter of its samples from which its own W_p does not learn
"""

PERSONAL["gated-head-train"] = Method(
    "Gated head (no held-out part)",
    _UNIFORM,
    personalisation=personal.GatedHead(gate_samples="all"),
    fixed=("gate_samples",),
)
"""This benchmark, a control.

as gated-head, but all samples teach gate and W_p alike
"""

PERSONAL["fed-rod"] = Method("Fed-RoD", personalisation=personal.ResidualHead())
"""Chen & Chao 2022, linear.

step = Σ_k n_k Δ_k / Σ_j n_j; adapters and W_g minimise the balanced softmax of W_g
alone, a client's own W_p the cross-entropy of W_g + W_p, step by step
"""

PERSONAL["ditto"] = Method("Ditto", personalisation=personal.Ditto())
"""Li et al. 2021.

step = Σ_k n_k Δ_k / Σ_j n_j; clients use v_k, trained beside θ_k to minimise the
cross-entropy + λ/2 ‖v_k − θ‖²
"""

PERSONAL["interpolate"] = Method("Running mix", personalisation=personal.Interpolate())
"""The chapter on personalisation; mixture as Deng et al. 2020.

step = Σ_k n_k Δ_k / Σ_j n_j; clients use, and begin at, a v_k + (1 − a) θ, v_k what
they trained last
"""

PERSONAL["apfl"] = Method("APFL", _UNIFORM, personalisation=personal.Apfl())
"""Deng et al. 2020.

step = (1/M) Σ_k Δ_k; clients use a v_k + (1 − a) θ, v_k trained beside θ_k along −∇_v
of the cross-entropy of a v_k + (1 − a) θ_k, step by step
"""

# --- Within LoRA ----------------------------------------------------------------------------------

WITHIN_LORA = FAMILIES.setdefault("Within LoRA", {})

WITHIN_LORA["ffa-lora"] = Method("FFA-LoRA", _UNIFORM, personalisation=personal.FrozenA())
"""Sun et al. 2024.

step = (1/M) Σ_k Δ_k; A is drawn once and never trained, B and the head are
"""

WITHIN_LORA["fedsa-lora"] = Method("FedSA-LoRA", _UNIFORM, personalisation=personal.PrivateB())
"""Guo et al. 2025.

step = (1/M) Σ_k Δ_k, of A and the head; a client has W + (α/r) B_k A with a B_k of its
own, trained together with the rest
"""

WITHIN_LORA["rolora"] = Method("RoLoRA", _UNIFORM, personalisation=personal.Alternating())
"""Chen et al. 2025.

step = (1/M) Σ_k Δ_k, of B and the head in odd rounds, of A and the head in even ones,
in which the other factor rests
"""

WITHIN_LORA["feddpa"] = Method("FedDPA-T", _UNIFORM, personalisation=personal.DualAdapter())
"""Yang et al. 2024, FedDPA-T.

step = (1/M) Σ_k Δ_k; a client trains an adapter v_k of its own in W + (1 − λ) u + λ
v_k, which it uses, then u and the head without v_k
"""

# --- Several models -------------------------------------------------------------------------------

SEVERAL = FAMILIES.setdefault("Several models", {})

SEVERAL["clustered"] = Method(
    "Clusters", Clustered(), heads_apart=True, fixed=("beta", "partials", "nearness")
)
"""Ghosh et al. 2020; the chapter on personalisation.

θ_c = Σ_k n_k θ_k / Σ_j n_j over the cohort's clients of cluster c; a client moves to
the cluster whose model has the lowest loss on its data; it has trained in its old one
before, where Ghosh et al. let it move first, and one that never trains stays in its first
"""

SEVERAL["semi-global"] = Method(
    "Semi-global models", Clustered(beta=0.5), heads_apart=True, numerics=1
)
"""The chapter on personalisation.

as Clusters, but clients of cluster c start from (1 − β) θ_c + β mean_c θ_c; with P
partial aggregates the mean is over the clusters of c's group, of P groups of clusters
nearest to each other
"""

SEVERAL["pens"] = Method("PENS", Pens())
"""Onoszko et al. 2021.

a client starts from the mean of its own last model and of others': first of the m with
the lowest loss on its data of l that it tried, later of its neighbours', those it
picked more often than m/l of the times
"""

# --- Contribution ---------------------------------------------------------------------------------

CONTRIBUTION = FAMILIES.setdefault("Contribution", {})

CONTRIBUTION["cgsv"] = Method("CGSV", Cgsv())
"""Xu et al. 2021, as in the chapter on contribution.

step = mean_k ‖Δ_k‖ · U, U = Σ_k r_k Δ_k/‖Δ_k‖ / Σ_j r_j; r_k ← γ_t r_k + (1 − γ_t)
cos(Δ_k, U), at least the floor
"""

CONTRIBUTION["cgsv-xu"] = Method("CGSV (as published)", CgsvXu())
"""Xu et al. 2021.

θ_k += the q_k entries of U of largest magnitude, U = Γ Σ_j r_j Δ_j/‖Δ_j‖; r_k ← α r_k +
(1 − α) cos(Δ_k, U), at least the floor, divided by their sum; q_k = ⌊d tanh(β r_k) /
max_j tanh(β r_j)⌋; a model θ_k for every client, all of whom take part and download
these entries, and a bit for each of d that says which
"""

CONTRIBUTION["focus"] = Method("FOCUS", Focus(), numerics=1)
"""Chen et al. 2020.

step = Σ_k w_k Δ_k, w_k ∝ n_k C_k, C = 1 − softmax(a E), E_k = loss of θ_k on the
server's samples + loss of θ on the client's
"""

# --- References -----------------------------------------------------------------------------------

REFERENCES = FAMILIES.setdefault("References", {})

REFERENCES["data-sharing"] = Method("Data sharing", sharing=SharedSamples())
"""Zhao et al. 2018; the chapter on aggregation.

step = Σ_k n_k Δ_k / Σ_j n_j; every client trains on its own samples and on a share of
everybody else's: no privacy for these
"""

REFERENCES["centralised"] = Method("Centralised", sharing=Central(), fixed=("weights",))
"""No federation: the ceiling.

one place trains on all samples, as many in a round as the cohort would
"""

REFERENCES["local-only"] = Method(
    "Local only", NoAggregation(), personalisation=personal.LocalOnly()
)
"""No federation: the floor.

step = 0; every client trains a model of its own
"""


def _texts() -> Iterator[tuple[str, str]]:
    """Yield the name of each row, and the string below it."""
    for row, text in pairwise(ast.parse(Path(__file__).read_text(encoding="utf-8")).body):
        match row, text:
            case ast.Assign([ast.Subscript(_, ast.Constant(name))]), ast.Expr(ast.Constant(words)):
                yield str(name), inspect.cleandoc(str(words))


for _name, _text in _texts():
    _source, _, _formula = _text.partition(".\n\n")
    _rows = next(rows for rows in FAMILIES.values() if _name in rows)
    _rows[_name] = replace(_rows[_name], source=_source, formula=" ".join(_formula.split()))

METHODS: Mapping[str, Method] = {
    name: row for rows in FAMILIES.values() for name, row in rows.items()
}
