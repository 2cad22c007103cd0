"""The methods: which rule, terms and personalisation each is made of, by family.

The docstring of a row is its source and, below it, its formula, in this notation:

θ is the server's model with its d communicated parameters, θ_k what client k makes of it,
Δ_k = θ_k − θ the update of one of the M clients of a round, n_k its training samples, and step
what the server adds to θ. Clients minimise the cross-entropy unless something else is said. K are
all clients of the federation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace

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


def _method(family: str, name: str) -> Callable[[Callable[[], Method]], Callable[[], Method]]:
    """Add the row that a function makes to a family, with the source and formula it states."""

    def add(make: Callable[[], Method]) -> Callable[[], Method]:
        source, _, formula = inspect.cleandoc(make.__doc__ or "").partition(".\n\n")
        row = replace(make(), source=source, formula=" ".join(formula.split()))
        FAMILIES.setdefault(family, {})[name] = row
        return make

    return add


# --- FedSDG ---------------------------------------------------------------------------------------


@_method("FedSDG", "fedsdg")
def fedsdg() -> Method:
    """FedSDG, Eq. 3-11.

    step = Σ_k w_k Δ_k, w_k ∝ max(0, cos(Δ_k, Σ_j Δ_j)); clients minimise the cross-entropy
    of θ_g + m θ_p plus λ₁ Σ_l |m_l| + λ₂ ‖θ_p‖², m = σ(a)
    """
    return Method(
        "FedSDG",
        Alignment(),
        personalisation=personal.DualPath(),
        fixed=("private_init", "clip_norm"),
    )


@_method("FedSDG", "fedsdg-heldout")
def fedsdg_heldout() -> Method:
    """FedSDG, Eq. 3-11; gates: this benchmark.

    as FedSDG, but its gates learn on a quarter of a client's samples from which θ_p does
    not learn
    """
    return Method(
        "FedSDG, gates on held-out samples",
        Alignment(),
        personalisation=personal.DualPath(gate_samples="held-out"),
        fixed=("private_init", "gate_samples", "clip_norm"),
    )


@_method("FedSDG", "fedsdg+head")
def fedsdg_head() -> Method:
    """FedSDG, Eq. 3-11; heads as Arivazhagan et al. 2019.

    as FedSDG, but every client keeps a head of its own, and θ has none
    """
    return Method(
        "FedSDG, own heads",
        Alignment(),
        personalisation=personal.DualPath(head="private"),
        fixed=("head", "private_init", "clip_norm"),
    )


@_method("FedSDG", "fedsdg-official")
def fedsdg_official() -> Method:
    """The authors' public code, June 2026, its defaults.

    step = (1/M) Σ_k Δ_k; clients as those of fedsdg, with a gate for each layer
    """
    return Method(
        "FedSDG (authors' code)",
        _UNIFORM,
        personalisation=_OFFICIAL,
        training={"epochs": 5, "eta_m": 0.1},
        fixed=_OFFICIAL_FIXED,
    )


@_method("FedSDG", "fedsdg-official-aligned")
def fedsdg_official_aligned() -> Method:
    """The authors' public code, June 2026, with its alignment switched on.

    step = Σ_k w_k Δ_k, w_k ∝ exp(cos(Δ_k, Σ_{j≠k} Δ_j) / τ); clients as those of fedsdg,
    with a gate for each layer
    """
    return Method(
        "FedSDG (authors' code, aligned)",
        Alignment(reference="leave_one_out", transform="softmax"),
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
    )


@_method("FedSDG", "fedsdg+screened")
def fedsdg_screened() -> Method:
    """FedSDG, Eq. 3-11; the chapter on robust aggregation.

    as FedSDG, of the clients that are not blocked
    """
    return Method(
        "FedSDG (screened)",
        Screened(inner=Alignment()),
        personalisation=personal.DualPath(),
        fixed=("private_init", "clip_norm"),
    )


@_method("FedSDG", "fedsdg+geometric-median")
def fedsdg_geometric_median() -> Method:
    """FedSDG, Eq. 3-9; Pillutla et al. 2022.

    step = argmin_z Σ_k ‖z − Δ_k‖; clients as in FedSDG
    """
    return Method(
        "FedSDG + geometric median",
        GeometricMedian(),
        personalisation=personal.DualPath(),
        fixed=("private_init",),
    )


@_method("FedSDG", "fedsdg+multikrum")
def fedsdg_multikrum() -> Method:
    """FedSDG, Eq. 3-9; Blanchard et al. 2017.

    step = mean of the M − f updates that Multi-Krum takes; clients as in FedSDG
    """
    return Method(
        "FedSDG + Multi-Krum",
        MultiKrum(),
        personalisation=personal.DualPath(),
        fixed=("private_init",),
    )


# --- Averaging ------------------------------------------------------------------------------------


@_method("Averaging", "fedavg")
def fedavg() -> Method:
    """McMahan et al. 2017.

    step = Σ_k n_k Δ_k / Σ_j n_j
    """
    return Method("FedAvg (samples)")


@_method("Averaging", "fedavg-uniform")
def fedavg_uniform() -> Method:
    """McMahan et al. 2017.

    step = (1/M) Σ_k Δ_k
    """
    return Method("FedAvg (uniform)", _UNIFORM, fixed=("weights",))


@_method("Averaging", "fedavg-sgd")
def fedavg_sgd() -> Method:
    """McMahan et al. 2017.

    step = (1/M) Σ_k Δ_k
    """
    return Method("FedAvg (SGD)", _UNIFORM, optimiser="sgd")


@_method("Averaging", "fedprox")
def fedprox() -> Method:
    """Li et al. 2020.

    step = Σ_k n_k Δ_k / Σ_j n_j; clients minimise the cross-entropy + μ/2 ‖θ_k − θ‖²
    """
    return Method("FedProx", objective=(Proximal(),))


@_method("Averaging", "fedprox-inexact")
def fedprox_inexact() -> Method:
    """Li et al. 2020, Definition 2.

    step = Σ_k n_k Δ_k / Σ_j n_j; clients minimise h_k = cross-entropy + μ/2 ‖θ_k − θ‖²
    until ‖∇h_k‖ is at most γ_k times what it was at θ, γ_k its own
    """
    return Method("FedProx (γ-inexact)", objective=(Proximal(),), stopping=Inexactness())


@_method("Averaging", "scaffold")
def scaffold() -> Method:
    """Karimireddy et al. 2020, option II.

    step = (1/M) Σ_k Δ_k, c += (1/K) Σ_k Δc_k; clients go θ_k −= η (g_k − c_k + c), Δc_k =
    −c − Δ_k / (steps · η)
    """
    return Method("SCAFFOLD", Scaffold(), objective=(ControlVariates(),), optimiser="sgd")


@_method("Averaging", "fedsgd")
def fedsgd() -> Method:
    """McMahan et al. 2017: one full-batch gradient per round.

    step = Σ_k n_k Δ_k / Σ_j n_j; clients take one step along their full gradient
    """
    return Method("FedSGD", optimiser="sgd", training={"epochs": 1, "batch_size": None})


@_method("Averaging", "fedcurv")
def fedcurv() -> Method:
    """Shoham et al. 2019.

    step = Σ_k n_k Δ_k / Σ_j n_j; clients minimise the cross-entropy + λ Σ_{j≠k} (θ_k −
    θ_j)ᵀ diag(I_j) (θ_k − θ_j), I_j their mean squared gradients
    """
    return Method("FedCurv", FedCurv(), objective=(Curvature(),))


# --- Robust rules ---------------------------------------------------------------------------------


@_method("Robust rules", "krum")
def krum() -> Method:
    """Blanchard et al. 2017.

    step = the Δ_k with the least sum of squared distances to M − f − 2 others
    """
    return Method("Krum", Krum())


@_method("Robust rules", "multikrum")
def multikrum() -> Method:
    """Blanchard et al. 2017.

    step = mean of the M − f updates with the least of Krum's sums, or of m
    """
    return Method("Multi-Krum", MultiKrum())


@_method("Robust rules", "geometric-median")
def geometric_median() -> Method:
    """Pillutla et al. 2022; Weiszfeld 1937.

    step = argmin_z Σ_k ‖z − Δ_k‖
    """
    return Method("Geometric median", GeometricMedian())


@_method("Robust rules", "coordinate-median")
def coordinate_median() -> Method:
    """Yin et al. 2018.

    step_j = median_k Δ_kj
    """
    return Method("Coordinate median", CoordinateMedian())


@_method("Robust rules", "trimmed-mean")
def trimmed_mean() -> Method:
    """Yin et al. 2018.

    step_j = mean_k Δ_kj without the f largest and the f smallest
    """
    return Method("Trimmed mean", TrimmedMean())


@_method("Robust rules", "screened")
def screened() -> Method:
    """The chapter on robust aggregation.

    step = mean of the Δ_k of clients not blocked; blocked is who in `strikes` rounds in a
    row was an outlier by distance from the geometric median, or by angle
    """
    return Method("Mean (screened)", Screened(inner=_UNIFORM))


# --- Personal models ------------------------------------------------------------------------------


@_method("Personal models", "fine-tune")
def fine_tune() -> Method:
    """Yu et al. 2020.

    step = Σ_k n_k Δ_k / Σ_j n_j; a client is evaluated after e epochs of its own
    """
    return Method("FedAvg + fine-tuning", personalisation=personal.FineTune())


@_method("Personal models", "fedbabu")
def fedbabu() -> Method:
    """Oh et al. 2022.

    step = Σ_k n_k Δ_k / Σ_j n_j, all but the head, which stays as drawn; a client is
    evaluated after e epochs of a head of its own
    """
    return Method(
        "FedBABU", personalisation=personal.FineTune(tunes="head", head="frozen"), fixed=("head",)
    )


@_method("Personal models", "fedrep")
def fedrep() -> Method:
    """Collins et al. 2021.

    step = Σ_k n_k Δ_k / Σ_j n_j, all but the head; a client trains its own head, then the
    rest
    """
    return Method("FedRep", personalisation=personal.OwnHead())


@_method("Personal models", "fedper")
def fedper() -> Method:
    """Arivazhagan et al. 2019.

    step = Σ_k n_k Δ_k / Σ_j n_j, all but the head; a client trains its own head and the
    rest together
    """
    return Method("FedPer", personalisation=personal.PrivateHead())


@_method("Personal models", "gated-head")
def gated_head() -> Method:
    """This benchmark.

    step = (1/M) Σ_k Δ_k; a client's head is (1 − m) W_g + m W_p, its gate m learned on a
    quarter of its samples from which its own W_p does not learn
    """
    return Method(
        "Gated head", _UNIFORM, personalisation=personal.GatedHead(), fixed=("gate_samples",)
    )


@_method("Personal models", "gated-head-train")
def gated_head_train() -> Method:
    """This benchmark, a control.

    as gated-head, but all samples teach gate and W_p alike
    """
    return Method(
        "Gated head (no held-out part)",
        _UNIFORM,
        personalisation=personal.GatedHead(gate_samples="all"),
        fixed=("gate_samples",),
    )


@_method("Personal models", "fed-rod")
def fed_rod() -> Method:
    """Chen & Chao 2022, linear.

    step = Σ_k n_k Δ_k / Σ_j n_j; adapters and W_g minimise the balanced softmax of W_g
    alone, a client's own W_p the cross-entropy of W_g + W_p, step by step
    """
    return Method("Fed-RoD", personalisation=personal.ResidualHead())


@_method("Personal models", "ditto")
def ditto() -> Method:
    """Li et al. 2021.

    step = Σ_k n_k Δ_k / Σ_j n_j; clients use v_k, trained beside θ_k to minimise the
    cross-entropy + λ/2 ‖v_k − θ‖²
    """
    return Method("Ditto", personalisation=personal.Ditto())


@_method("Personal models", "interpolate")
def interpolate() -> Method:
    """The chapter on personalisation; mixture as Deng et al. 2020.

    step = Σ_k n_k Δ_k / Σ_j n_j; clients use, and begin at, a v_k + (1 − a) θ, v_k what
    they trained last
    """
    return Method("Running mix", personalisation=personal.Interpolate())


@_method("Personal models", "apfl")
def apfl() -> Method:
    """Deng et al. 2020.

    step = (1/M) Σ_k Δ_k; clients use a v_k + (1 − a) θ, v_k trained beside θ_k along −∇_v
    of the cross-entropy of a v_k + (1 − a) θ_k, step by step
    """
    return Method("APFL", _UNIFORM, personalisation=personal.Apfl())


# --- Within LoRA ----------------------------------------------------------------------------------


@_method("Within LoRA", "ffa-lora")
def ffa_lora() -> Method:
    """Sun et al. 2024.

    step = (1/M) Σ_k Δ_k; A is drawn once and never trained, B and the head are
    """
    return Method("FFA-LoRA", _UNIFORM, personalisation=personal.FrozenA())


@_method("Within LoRA", "fedsa-lora")
def fedsa_lora() -> Method:
    """Guo et al. 2025.

    step = (1/M) Σ_k Δ_k, of A and the head; a client has W + (α/r) B_k A with a B_k of its
    own, trained together with the rest
    """
    return Method("FedSA-LoRA", _UNIFORM, personalisation=personal.PrivateB())


@_method("Within LoRA", "rolora")
def rolora() -> Method:
    """Chen et al. 2025.

    step = (1/M) Σ_k Δ_k, of B and the head in odd rounds, of A and the head in even ones,
    in which the other factor rests
    """
    return Method("RoLoRA", _UNIFORM, personalisation=personal.Alternating())


@_method("Within LoRA", "feddpa")
def feddpa() -> Method:
    """Yang et al. 2024, FedDPA-T.

    step = (1/M) Σ_k Δ_k; a client trains an adapter v_k of its own in W + (1 − λ) u + λ
    v_k, which it uses, then u and the head without v_k
    """
    return Method("FedDPA-T", _UNIFORM, personalisation=personal.DualAdapter())


# --- Several models -------------------------------------------------------------------------------


@_method("Several models", "clustered")
def clustered() -> Method:
    """Ghosh et al. 2020; the chapter on personalisation.

    θ_c = Σ_k n_k θ_k / Σ_j n_j over the cohort's clients of cluster c; a client moves to
    the cluster whose model has the lowest loss on its data
    """
    return Method("Clusters", Clustered(), heads_apart=True, fixed=("beta", "partials", "nearness"))


@_method("Several models", "semi-global")
def semi_global() -> Method:
    """The chapter on personalisation.

    as Clusters, but clients of cluster c start from (1 − β) θ_c + β mean_c θ_c; with P
    partial aggregates the mean is over the clusters of c's group, of P groups of clusters
    nearest to each other
    """
    return Method("Semi-global models", Clustered(beta=0.5), heads_apart=True)


@_method("Several models", "pens")
def pens() -> Method:
    """Onoszko et al. 2021.

    a client starts from the mean of its own last model and of others': first of the m with
    the lowest loss on its data of l that it tried, later of its neighbours', those it
    picked more often than m/l of the times
    """
    return Method("PENS", Pens())


# --- Contribution ---------------------------------------------------------------------------------


@_method("Contribution", "cgsv")
def cgsv() -> Method:
    """Xu et al. 2021, as in the chapter on contribution.

    step = mean_k ‖Δ_k‖ · U, U = Σ_k r_k Δ_k/‖Δ_k‖ / Σ_j r_j; r_k ← γ_t r_k + (1 − γ_t)
    cos(Δ_k, U), at least the floor
    """
    return Method("CGSV", Cgsv())


@_method("Contribution", "cgsv-xu")
def cgsv_xu() -> Method:
    """Xu et al. 2021.

    θ_k += the q_k entries of U of largest magnitude, U = Γ Σ_j r_j Δ_j/‖Δ_j‖; r_k ← α r_k +
    (1 − α) cos(Δ_k, U), at least the floor, divided by their sum; q_k = ⌊d tanh(β r_k) /
    max_j tanh(β r_j)⌋; a model θ_k for every client, all of whom take part and download
    these entries, and a bit for each of d that says which
    """
    return Method("CGSV (as published)", CgsvXu())


@_method("Contribution", "focus")
def focus() -> Method:
    """Chen et al. 2020.

    step = Σ_k w_k Δ_k, w_k ∝ n_k C_k, C = 1 − softmax(a E), E_k = loss of θ_k on the
    server's samples + loss of θ on the client's
    """
    return Method("FOCUS", Focus())


# --- References -----------------------------------------------------------------------------------


@_method("References", "data-sharing")
def data_sharing() -> Method:
    """Zhao et al. 2018; the chapter on aggregation.

    step = Σ_k n_k Δ_k / Σ_j n_j; every client trains on its own samples and on a share of
    everybody else's: no privacy for these
    """
    return Method("Data sharing", sharing=SharedSamples())


@_method("References", "centralised")
def centralised() -> Method:
    """No federation: the ceiling.

    one place trains on all samples, as many in a round as the cohort would
    """
    return Method("Centralised", sharing=Central(), fixed=("weights",))


@_method("References", "local-only")
def local_only() -> Method:
    """No federation: the floor.

    step = 0; every client trains a model of its own
    """
    return Method("Local only", NoAggregation(), personalisation=personal.LocalOnly())


METHODS: Mapping[str, Method] = {
    name: row for rows in FAMILIES.values() for name, row in rows.items()
}
