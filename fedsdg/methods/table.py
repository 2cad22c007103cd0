"""The table of methods: name -> aggregation rule + objective + personalisation + optimiser.

A method is a composition and nothing else; adding one is adding a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from fedsdg.methods.composition import Key, Method, Parameter, Part


def _part(place: str, /, **arguments: Any) -> Part:
    return Part(f"fedsdg.{place}", MappingProxyType(arguments))


def _rule(place: str, /, **arguments: Any) -> Part:
    return _part(f"aggregation.rules.{place}", **arguments)


def _term(place: str, /, **arguments: Any) -> Part:
    return _part(f"federation.objectives.{place}", **arguments)


def _personal(place: str, /, **arguments: Any) -> Part:
    return _part(f"federation.personalisation.{place}", **arguments)


def _dual_path(**arguments: Any) -> Part:
    branch = _personal("dual_path:DualPath", **arguments)
    return replace(branch, brings=("GatePenalty", "PrivatePenalty"))


_MEAN = _rule("mean:Mean", weights=Key("weights"))


def _weights(default: str) -> Mapping[str, Parameter]:
    """What a server weighs by, where it may be changed."""
    return {
        "weights": Parameter(
            default,
            choices=("samples", "uniform", "batches"),
            meaning="a client counts by its samples n_k, as all others do, or by its steps",
            quiet=True,
        )
    }


_SAMPLES, _ALIKE = _weights("samples"), _weights("uniform")
_BY_SAMPLES = "step = Σ_k n_k Δ_k / Σ_j n_j"
_UNIFORM = "step = (1/M) Σ_k Δ_k"
_BYZANTINE = Parameter(
    1, minimum=0, integer=True, meaning="f, Byzantine clients per round tolerated"
)

_TAKEN = Parameter(
    None,
    minimum=1,
    integer=True,
    optional=True,
    meaning="m, updates that are averaged; none: M − f",
    quiet=True,
)

_TOLERANCE = Parameter(1e-6, minimum=1e-12, maximum=0.1, meaning="relative subgradient residual")
_FLOOR = Parameter(1e-3, minimum=0, maximum=0.999, meaning="least contribution r_n")
_CLUSTERS = {
    **_SAMPLES,
    "clusters": Parameter(3, minimum=2, integer=True, meaning="C, models of the server"),
    "assignment": Parameter(
        "loss", choices=("loss", "known"), meaning="who is in which: by loss, or by known data"
    ),
}
_KNOWN_CLUSTERS = _part(
    "federation.knowledge:known_clusters", clusters=Key("clusters"), assignment=Key("assignment")
)
_CLUSTER_SCORES = _part("federation.probes:cluster_scores", assignment=Key("assignment"))

_HEAD = Parameter("shared", choices=("shared", "private"), meaning="whose head", quiet=True)
_FEDSDG_PARAMETERS = {
    "lambda1": Parameter(1e-4, minimum=0, meaning="λ₁ of Eq. 5, weight of Σ_l |m_l|"),
    "lambda2": Parameter(1e-4, minimum=0, meaning="λ₂ of Eq. 5, weight of ‖θ_p‖²"),
    "gate": Parameter("block", choices=("block", "layer", "client"), meaning="one gate per …"),
    "gate_init": Parameter(0.0, meaning="initial gate logit a; m = σ(a)"),
    "gate_fixed": Parameter(
        None, minimum=0, maximum=1, optional=True, meaning="a gate that is not learned"
    ),
    "composition": Parameter("residual", choices=("residual", "factors"), meaning="Eq. 4"),
    "private_subspace": Parameter("own", choices=("own", "shared-a"), meaning="whose A_p"),
    "private_norm": Parameter(
        "factors", choices=("factors", "residual", "b-only"), meaning="what λ₂ penalises"
    ),
    "head": _HEAD,
    "epsilon": Parameter(1e-8, minimum=1e-300, maximum=0.01, meaning="ε of Eq. 10"),
    "reference": Parameter(
        "mean", choices=("mean", "leave_one_out"), meaning="direction aligned to"
    ),
    "transform": Parameter("relu", choices=("relu", "softmax"), meaning="scores to weights"),
    "temperature": Parameter(0.05, minimum=1e-6, meaning="τ of the softmax transform"),
    "max_weight": Parameter(None, minimum=0, maximum=1, optional=True, meaning="largest weight"),
    "smoothing": Parameter(0.0, minimum=0, maximum=1, meaning="share of uniform weights mixed in"),
    "scope": Parameter(
        "all", choices=("all", "adapters"), meaning="what of θ_g alignment compares", quiet=True
    ),
}

_ALIGNMENT = _rule(
    "alignment:Alignment",
    epsilon=Key("epsilon"),
    reference=Key("reference"),
    transform=Key("transform"),
    temperature=Key("temperature"),
    max_weight=Key("max_weight"),
    smoothing=Key("smoothing"),
    scope=Key("scope"),
)
_FEDSDG_BRANCH = _dual_path(
    lambda1=Key("lambda1"),
    lambda2=Key("lambda2"),
    private_norm=Key("private_norm"),
    gate=Key("gate"),
    gate_init=Key("gate_init"),
    gate_fixed=Key("gate_fixed"),
    composition=Key("composition"),
    private_subspace=Key("private_subspace"),
    head=Key("head"),
)
_FEDSDG_PRIVATE_HEAD = replace(
    _FEDSDG_BRANCH, arguments=MappingProxyType({**_FEDSDG_BRANCH.arguments, "head": "private"})
)
_FEDSDG_LOCAL = {
    value.name: _FEDSDG_PARAMETERS[value.name]
    for value in _FEDSDG_BRANCH.arguments.values()
    if isinstance(value, Key)
}

_SCREEN = {"strikes": Key("strikes"), "threshold": Key("threshold")}
_SCREENED = {
    "strikes": Parameter(
        2, minimum=1, integer=True, meaning="rounds in a row until a client is blocked"
    ),
    "threshold": Parameter(
        3.5, minimum=1e-3, meaning="robust standard deviations that are too many"
    ),
}

_OFFICIAL_BRANCH = _dual_path(
    lambda1=Key("lambda1"),
    lambda2=Key("lambda2"),
    gate="layer",
    gate_init=Key("gate_init"),
    private_init="official",
)
_OFFICIAL_PARAMETERS = {
    "lambda1": Parameter(0.01, minimum=0, meaning="λ₁ of Eq. 5, weight of Σ_l |m_l|"),
    "lambda2": Parameter(0.001, minimum=0, meaning="λ₂ of Eq. 5, weight of ‖θ_p‖²"),
    "gate_init": Parameter(-2.0, meaning="initial gate logit a; m = σ(a)"),
}

METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "fedsdg": Method(
            title="FedSDG",
            rule=_ALIGNMENT,
            undecayed=True,
            personalisation=_FEDSDG_BRANCH,
            parameters=_FEDSDG_PARAMETERS,
            needs_adapters=True,
            formula="step = Σ_k w_k Δ_k, w_k ∝ max(0, cos(Δ_k, Σ_j Δ_j)); clients minimise the "
            "cross-entropy of θ_g + m θ_p plus λ₁ Σ_l |m_l| + λ₂ ‖θ_p‖², m = σ(a)",
            source="FedSDG, Eq. 3-11",
            server_cost="2 passes",
        ),
        "fedavg": Method(
            title="FedAvg (samples)",
            rule=_MEAN,
            parameters=_SAMPLES,
            formula=_BY_SAMPLES,
            source="McMahan et al. 2017",
            server_cost="1 pass",
        ),
        "fedavg-uniform": Method(
            title="FedAvg (uniform)",
            rule=_rule("mean:Mean", weights="uniform"),
            formula=_UNIFORM,
            source="McMahan et al. 2017",
            server_cost="1 pass",
        ),
        "fedavg-sgd": Method(
            title="FedAvg (SGD)",
            rule=_MEAN,
            parameters=_ALIKE,
            optimiser="sgd",
            formula=_UNIFORM,
            source="McMahan et al. 2017",
            server_cost="1 pass",
        ),
        "fine-tune": Method(
            title="FedAvg + fine-tuning",
            rule=_MEAN,
            personalisation=_personal("fine_tune:FineTune", personal_epochs=Key("personal_epochs")),
            parameters={
                **_SAMPLES,
                "personal_epochs": Parameter(
                    2, minimum=1, integer=True, meaning="e, local epochs before evaluation"
                ),
            },
            formula=f"{_BY_SAMPLES}; a client is evaluated after e epochs of its own",
            source="Yu et al. 2020",
            client_cost="E epochs, and e before an evaluation",
            server_cost="1 pass",
        ),
        "fedprox": Method(
            title="FedProx",
            rule=_MEAN,
            objective=(_term("proximal:Proximal", mu=Key("mu")),),
            parameters={
                **_SAMPLES,
                "mu": Parameter(0.1, minimum=0, meaning="μ of the proximal term μ/2 ‖θ − θ_t‖²"),
            },
            formula=f"{_BY_SAMPLES}; clients minimise the cross-entropy + μ/2 ‖θ_k − θ‖²",
            source="Li et al. 2020",
            server_cost="1 pass",
        ),
        "scaffold": Method(
            title="SCAFFOLD",
            rule=_rule("scaffold:Scaffold", server_rate=Key("server_rate")),
            objective=(_term("control_variates:ControlVariates"),),
            optimiser="sgd",
            parameters={
                "server_rate": Parameter(
                    1.0,
                    minimum=1e-6,
                    maximum=1e6,
                    meaning="η_g of SCAFFOLD's server, which multiplies the step",
                    quiet=True,
                )
            },
            formula=f"{_UNIFORM}, c += (1/K) Σ_k Δc_k; clients go θ_k −= η (g_k − c_k + c), "
            "Δc_k = −c − Δ_k / (steps · η)",
            source="Karimireddy et al. 2020, option II",
            up="2d",
            down="2d",
            server_cost="2 passes",
        ),
        "krum": Method(
            title="Krum",
            rule=_rule("krum:Krum", f=Key("f")),
            parameters={"f": _BYZANTINE},
            formula="step = the Δ_k with the least sum of squared distances to M − f − 2 others",
            source="Blanchard et al. 2017",
            server_cost="2 passes",
        ),
        "multikrum": Method(
            title="Multi-Krum",
            rule=_rule("krum:MultiKrum", f=Key("f"), m=Key("m")),
            parameters={"f": _BYZANTINE, "m": _TAKEN},
            formula="step = mean of the M − f updates with the least of Krum's sums, or of m",
            source="Blanchard et al. 2017",
            server_cost="2 passes",
        ),
        "geometric-median": Method(
            title="Geometric median",
            rule=_rule("geometric_median:GeometricMedian", tolerance=Key("tolerance")),
            parameters={"tolerance": _TOLERANCE},
            formula="step = argmin_z Σ_k ‖z − Δ_k‖",
            source="Pillutla et al. 2022; Weiszfeld 1937",
            server_cost="2 passes",
        ),
        "coordinate-median": Method(
            title="Coordinate median",
            rule=_rule("median:CoordinateMedian"),
            formula="step_j = median_k Δ_kj",
            source="Yin et al. 2018",
            server_cost="1 pass",
        ),
        "trimmed-mean": Method(
            title="Trimmed mean",
            rule=_rule("trimmed_mean:TrimmedMean", f=Key("f")),
            parameters={"f": _BYZANTINE},
            beyond_attackers=1,
            formula="step_j = mean_k Δ_kj without the f largest and the f smallest",
            source="Yin et al. 2018",
            server_cost="1 pass",
        ),
        "cgsv": Method(
            title="CGSV",
            rule=_rule(
                "cgsv:Cgsv",
                gamma0=Key("gamma0"),
                floor=Key("floor"),
                step_scale=Key("step_scale"),
            ),
            parameters={
                "gamma0": Parameter(
                    0.5, minimum=0, maximum=1, meaning="γ₀ of γ_t = 1 − (1 − γ₀)/t"
                ),
                "floor": _FLOOR,
                "step_scale": Parameter(
                    "mean-norm", choices=("mean-norm", "unit"), meaning="length of the step"
                ),
            },
            formula="step = mean_k ‖Δ_k‖ · U, U = Σ_k r_k Δ_k/‖Δ_k‖ / Σ_j r_j; "
            "r_k ← γ_t r_k + (1 − γ_t) cos(Δ_k, U), at least the floor",
            source="Xu et al. 2021, as in the chapter on contribution",
            server_cost="3 passes",
        ),
        "fedsgd": Method(
            title="FedSGD",
            rule=_MEAN,
            parameters=_SAMPLES,
            optimiser="sgd",
            training={"epochs": 1, "batch_size": None},
            formula=f"{_BY_SAMPLES}; clients take one step along their full gradient",
            source="McMahan et al. 2017: one full-batch gradient per round",
            client_cost="one gradient of all samples",
            server_cost="1 pass",
        ),
        "fedprox-inexact": Method(
            title="FedProx (γ-inexact)",
            rule=_MEAN,
            objective=(_term("proximal:Proximal", mu=Key("mu")),),
            stopping=_part(
                "federation.stopping:Inexactness",
                gamma=Key("gamma"),
                most_epochs=Key("most_epochs"),
                gamma_by=Key("gamma_by"),
            ),
            parameters={
                **_SAMPLES,
                "mu": Parameter(0.1, minimum=0, meaning="μ of the proximal term μ/2 ‖θ − θ_t‖²"),
                "most_epochs": Parameter(
                    10, minimum=1, integer=True, meaning="epochs after which a client stops anyway"
                ),
                "gamma": Parameter(
                    (0.9, 0.7, 0.5),
                    minimum=0,
                    maximum=1,
                    several=True,
                    span=True,
                    meaning="γ of the clients: one of these for each, or between low and high",
                    quiet=True,
                ),
                "gamma_by": Parameter(
                    "chance",
                    choices=("chance", "speed"),
                    meaning="a client's γ is drawn, or the larger the slower it is",
                    quiet=True,
                ),
            },
            formula=f"{_BY_SAMPLES}; clients minimise h_k = cross-entropy + μ/2 ‖θ_k − θ‖² until "
            "‖∇h_k‖ is at most γ_k times what it was at θ, γ_k its own",
            source="Li et al. 2020, Definition 2",
            client_cost="1 to 10 epochs, and a full gradient before and after each",
            server_cost="1 pass",
        ),
        "fedcurv": Method(
            title="FedCurv",
            rule=_rule("fedcurv:FedCurv", weights=Key("weights")),
            objective=(_term("curvature:Curvature", strength=Key("strength")),),
            probes=(_part("federation.fisher:FisherInformation"),),
            parameters={
                **_SAMPLES,
                "strength": Parameter(
                    1.0, minimum=0, meaning="λ of the penalty on the others' parameters"
                ),
            },
            formula=f"{_BY_SAMPLES}; clients minimise the cross-entropy "
            "+ λ Σ_{j≠k} (θ_k − θ_j)ᵀ diag(I_j) (θ_k − θ_j), I_j their mean squared gradients",
            source="Shoham et al. 2019",
            up="3d",
            down="3d",
            client_cost="E epochs, and the gradient of every sample",
            server_cost="3 passes",
        ),
        "fedrep": Method(
            title="FedRep",
            rule=_MEAN,
            personalisation=_personal("own_head:OwnHead", head_epochs=Key("head_epochs")),
            parameters={
                **_SAMPLES,
                "head_epochs": Parameter(
                    2,
                    minimum=1,
                    integer=True,
                    meaning="epochs of the head, before those of the body",
                ),
            },
            formula=f"{_BY_SAMPLES}, all but the head; a client trains its own head, then the rest",
            source="Collins et al. 2021",
            client_cost="E epochs, and head_epochs of the head",
            server_cost="1 pass",
        ),
        "ditto": Method(
            title="Ditto",
            rule=_MEAN,
            personalisation=_personal("ditto:Ditto", strength=Key("strength")),
            parameters={
                **_SAMPLES,
                "strength": Parameter(
                    0.1, minimum=0, meaning="λ that holds a client's own model to the global one"
                ),
            },
            formula=f"{_BY_SAMPLES}; clients use v_k, trained beside θ_k to minimise "
            "the cross-entropy + λ/2 ‖v_k − θ‖²",
            source="Li et al. 2021",
            client_cost="2E epochs, of θ_k and of v_k",
            server_cost="1 pass",
        ),
        "interpolate": Method(
            title="Running mix",
            rule=_MEAN,
            personalisation=_personal("interpolate:Interpolate", weight=Key("weight")),
            parameters={
                **_SAMPLES,
                "weight": Parameter(
                    0.5,
                    minimum=0,
                    maximum=1,
                    optional=True,
                    meaning="a of v ← a v + (1 − a) θ; null learns it on validation data",
                ),
            },
            formula=f"{_BY_SAMPLES}; clients use, and begin at, a v_k + (1 − a) θ, "
            "v_k what they trained last",
            source="the chapter on personalisation; mixture as Deng et al. 2020",
            server_cost="1 pass",
        ),
        "fedper": Method(
            title="FedPer",
            rule=_MEAN,
            parameters=_SAMPLES,
            personalisation=_personal("private_head:PrivateHead"),
            formula=f"{_BY_SAMPLES}, all but the head; a client trains its own head and the rest "
            "together",
            source="Arivazhagan et al. 2019",
            server_cost="1 pass",
        ),
        "fedsdg+head": Method(
            title="FedSDG, own heads",
            rule=_ALIGNMENT,
            undecayed=True,
            personalisation=_FEDSDG_PRIVATE_HEAD,
            parameters={k: one for k, one in _FEDSDG_PARAMETERS.items() if k != "head"},
            needs_adapters=True,
            formula="as FedSDG, but every client keeps a head of its own, and θ has none",
            source="FedSDG, Eq. 3-11; heads as Arivazhagan et al. 2019",
            server_cost="2 passes",
        ),
        "ffa-lora": Method(
            title="FFA-LoRA",
            rule=_MEAN,
            parameters=_ALIKE,
            personalisation=_personal("frozen_a:FrozenA"),
            needs_adapters=True,
            formula=f"{_UNIFORM}; A is drawn once and never trained, B and the head are",
            source="Sun et al. 2024",
            server_cost="1 pass",
        ),
        "fedsa-lora": Method(
            title="FedSA-LoRA",
            rule=_MEAN,
            personalisation=_personal("private_b:PrivateB", head=Key("head")),
            parameters={**_ALIKE, "head": _HEAD},
            needs_adapters=True,
            formula=f"{_UNIFORM}, of A and the head; a client has W + (α/r) B_k A with a B_k of "
            "its own, trained together with the rest",
            source="Guo et al. 2025",
            server_cost="1 pass",
        ),
        "rolora": Method(
            title="RoLoRA",
            rule=_MEAN,
            parameters=_ALIKE,
            personalisation=_personal("alternating:Alternating"),
            needs_adapters=True,
            formula=f"{_UNIFORM}, of B and the head in odd rounds, of A and the head in even ones, "
            "in which the other factor rests",
            source="Chen et al. 2025",
            up="≤ d",
            down="≤ d",
            server_cost="1 pass",
        ),
        "apfl": Method(
            title="APFL",
            rule=_MEAN,
            personalisation=_personal("apfl:Apfl", weight=Key("weight")),
            parameters={
                **_ALIKE,
                "weight": Parameter(0.5, minimum=0, maximum=1, meaning="a of v̂ = a v + (1 − a) w"),
            },
            formula=f"{_UNIFORM}; clients use a v_k + (1 − a) θ, v_k trained beside θ_k along "
            "−∇_v of the cross-entropy of a v_k + (1 − a) θ_k, step by step",
            source="Deng et al. 2020",
            client_cost="2E epochs, of θ_k and of v_k",
            server_cost="1 pass",
        ),
        "feddpa": Method(
            title="FedDPA-T",
            rule=_MEAN,
            personalisation=_personal(
                "dual_adapter:DualAdapter",
                weight=Key("weight"),
                personal_epochs=Key("personal_epochs"),
                mixture=Key("mixture"),
            ),
            parameters={
                **_ALIKE,
                "mixture": Parameter(
                    "fixed", choices=("fixed", "per-sample"), meaning="λ for all, or by image"
                ),
                "weight": Parameter(
                    0.5, minimum=0, maximum=1, meaning="λ, share of a client's own adapter v"
                ),
                "personal_epochs": Parameter(
                    2, minimum=1, integer=True, meaning="epochs of v, before those of the rest"
                ),
            },
            needs_adapters=True,
            formula=f"{_UNIFORM}; a client trains an adapter v_k of its own in "
            "W + (1 − λ) u + λ v_k, which it uses, then u and the head without v_k; per sample it "
            "uses λ times the mean cosine of an image's and five own training images' features",
            source="Yang et al. 2024, FedDPA-T",
            client_cost="E epochs, and personal_epochs of v",
            server_cost="1 pass",
        ),
        "fedsdg-official": Method(
            title="FedSDG (authors' code)",
            rule=_MEAN,
            undecayed=True,
            personalisation=_OFFICIAL_BRANCH,
            needs_adapters=True,
            training={"epochs": 5, "eta_m": 0.1},
            parameters={**_ALIKE, **_OFFICIAL_PARAMETERS},
            formula=f"{_UNIFORM}; clients as those of fedsdg, with a gate for each layer",
            source="the authors' public code, June 2026, its defaults",
            server_cost="1 pass",
        ),
        "fedsdg-official-aligned": Method(
            title="FedSDG (authors' code, aligned)",
            rule=_rule(
                "alignment:Alignment",
                reference="leave_one_out",
                transform="softmax",
                temperature=Key("temperature"),
            ),
            undecayed=True,
            personalisation=_OFFICIAL_BRANCH,
            needs_adapters=True,
            training={"epochs": 5, "eta_m": 0.1},
            parameters={
                **_OFFICIAL_PARAMETERS,
                "temperature": Parameter(0.05, minimum=1e-6, meaning="τ of the softmax transform"),
            },
            formula="step = Σ_k w_k Δ_k, w_k ∝ exp(cos(Δ_k, Σ_{j≠k} Δ_j) / τ); clients as those of "
            "fedsdg, with a gate for each layer",
            source="the authors' public code, June 2026, with its alignment switched on",
            server_cost="2 passes",
        ),
        "cgsv-xu": Method(
            title="CGSV (as published)",
            rule=_rule(
                "cgsv_xu:CgsvXu",
                gamma=Key("gamma"),
                alpha=Key("alpha"),
                beta=Key("beta"),
                floor=Key("floor"),
            ),
            parameters={
                "gamma": Parameter(0.5, minimum=1e-6, meaning="Γ, length of a normalised update"),
                "alpha": Parameter(
                    0.95, minimum=0, maximum=0.999, meaning="α of r ← α r + (1 − α) cos(Δ, U)"
                ),
                "beta": Parameter(1.0, minimum=1e-6, meaning="β, altruism of the rewards"),
                "floor": _FLOOR,
            },
            everybody=True,
            formula="θ_k += the q_k entries of U of largest magnitude, U = Γ Σ_j r_j Δ_j/‖Δ_j‖; "
            "r_k ← α r_k + (1 − α) cos(Δ_k, U), at least the floor, divided by their sum; "
            "q_k = ⌊d tanh(β r_k) / max_j tanh(β r_j)⌋; a model θ_k for every client, all of whom "
            "take part and download these entries, and a bit for each of d that says which",
            source="Xu et al. 2021",
            down="≤ d",
            server_cost="3 passes",
        ),
        "focus": Method(
            title="FOCUS",
            rule=_rule("focus:Focus", temperature=Key("temperature"), weights=Key("weights")),
            probes=(_part("federation.probes:CrossLosses"),),
            parameters={
                **_SAMPLES,
                "temperature": Parameter(
                    1.0, minimum=1e-6, meaning="a of the credibility 1 − softmax(a E)"
                ),
            },
            formula="step = Σ_k w_k Δ_k, w_k ∝ n_k C_k, C = 1 − softmax(a E), E_k = loss of θ_k on "
            "the server's samples + loss of θ on the client's",
            source="Chen et al. 2020",
            up="d + 2 numbers",
            client_cost="E epochs, and the loss of its data; the server its samples' for each",
            server_cost="1 pass",
        ),
        "clustered": Method(
            title="Clusters",
            rule=_rule(
                "clusters:Clustered",
                clusters=Key("clusters"),
                assignment=Key("assignment"),
                weights=Key("weights"),
            ),
            probes=(_CLUSTER_SCORES,),
            knowledge=_KNOWN_CLUSTERS,
            heads_apart=True,
            parameters=_CLUSTERS,
            formula="θ_c = Σ_k n_k θ_k / Σ_j n_j over the cohort's clients of cluster c; a client "
            "moves to the cluster whose model has the lowest loss on its data",
            source="Ghosh et al. 2020; the chapter on personalisation",
            up="d + C numbers",
            down="≤ 4d",
            client_cost="E epochs, and the loss of its data under C models",
            server_cost="1 pass",
        ),
        "semi-global": Method(
            title="Semi-global models",
            rule=_rule(
                "clusters:Clustered",
                clusters=Key("clusters"),
                assignment=Key("assignment"),
                beta=Key("beta"),
                weights=Key("weights"),
                partials=Key("partials"),
                nearness=Key("nearness"),
            ),
            probes=(_CLUSTER_SCORES,),
            knowledge=Part(
                _KNOWN_CLUSTERS.reference,
                MappingProxyType({**_KNOWN_CLUSTERS.arguments, "nearness": Key("nearness")}),
            ),
            heads_apart=True,
            parameters={
                **_CLUSTERS,
                "beta": Parameter(
                    0.5, minimum=0, maximum=1, meaning="β, share of the mean of all clusters"
                ),
                "partials": Parameter(
                    1,
                    minimum=1,
                    integer=True,
                    meaning="P, partial aggregates, each over the nearest clusters; 1: over all",
                    quiet=True,
                ),
                "nearness": Parameter(
                    "models",
                    choices=("models", "labels"),
                    meaning="clusters are near by their models, or by the labels of their clients",
                    quiet=True,
                ),
            },
            formula="as Clusters, but clients of cluster c start from (1 − β) θ_c + β mean_c θ_c; "
            "with P partial aggregates the mean is over the clusters of c's group, of P groups of "
            "clusters nearest to each other",
            source="the chapter on personalisation",
            up="d + C numbers",
            down="≤ 4d",
            client_cost="E epochs, and the loss of its data under C models",
            server_cost="1 pass",
        ),
        "pens": Method(
            title="PENS",
            rule=_rule(
                "neighbours:Pens",
                phase_one=Key("phase_one"),
                sample=Key("sample"),
                top=Key("top"),
            ),
            probes=(
                _part(
                    "federation.probes:ModelScores", sample=Key("sample"), rounds=Key("phase_one")
                ),
            ),
            parameters={
                "phase_one": Parameter(
                    10, minimum=0, integer=True, meaning="rounds in which neighbours are sought"
                ),
                "sample": Parameter(
                    5, minimum=1, integer=True, meaning="l, models that a client tries in a round"
                ),
                "top": Parameter(
                    2, minimum=1, integer=True, meaning="m, models of them that it picks"
                ),
            },
            formula="a client starts from the mean of its own last model and of others': first of "
            "the m with the lowest loss on its data of l that it tried, later of its neighbours', "
            "those it picked more often than m/l of the times",
            source="Onoszko et al. 2021",
            up="d + K numbers",
            down="≤ 6d",
            client_cost="E epochs, and the loss of its data under l models",
            server_cost="1 pass",
        ),
        "screened": Method(
            title="Mean (screened)",
            rule=_rule("screened:Screened", inner=_MEAN, **_SCREEN),
            parameters={**_ALIKE, **_SCREENED},
            formula="step = mean of the Δ_k of clients not blocked; blocked is who in `strikes` "
            "rounds in a row was an outlier by distance from the geometric median, or by angle",
            source="the chapter on robust aggregation",
            server_cost="4 passes",
        ),
        "fedsdg+screened": Method(
            title="FedSDG (screened)",
            rule=_rule("screened:Screened", inner=_ALIGNMENT, **_SCREEN),
            undecayed=True,
            personalisation=_FEDSDG_BRANCH,
            parameters={**_FEDSDG_PARAMETERS, **_SCREENED},
            needs_adapters=True,
            formula="as FedSDG, of the clients that are not blocked",
            source="FedSDG, Eq. 3-11; the chapter on robust aggregation",
            server_cost="5 passes",
        ),
        "fedsdg+geometric-median": Method(
            title="FedSDG + geometric median",
            rule=_rule("geometric_median:GeometricMedian", tolerance=Key("tolerance")),
            undecayed=True,
            personalisation=_FEDSDG_BRANCH,
            parameters={**_FEDSDG_LOCAL, "tolerance": _TOLERANCE},
            needs_adapters=True,
            formula="step = argmin_z Σ_k ‖z − Δ_k‖; clients as in FedSDG",
            source="FedSDG, Eq. 3-9; Pillutla et al. 2022",
            server_cost="2 passes",
        ),
        "fedsdg+multikrum": Method(
            title="FedSDG + Multi-Krum",
            rule=_rule("krum:MultiKrum", f=Key("f"), m=Key("m")),
            undecayed=True,
            personalisation=_FEDSDG_BRANCH,
            parameters={**_FEDSDG_LOCAL, "f": _BYZANTINE, "m": _TAKEN},
            needs_adapters=True,
            formula="step = mean of the M − f updates that Multi-Krum takes; clients as in FedSDG",
            source="FedSDG, Eq. 3-9; Blanchard et al. 2017",
            server_cost="2 passes",
        ),
        "data-sharing": Method(
            title="Data sharing",
            rule=_MEAN,
            pooling=_part("federation.pooling:SharedSamples", share=Key("share")),
            parameters={
                **_SAMPLES,
                "share": Parameter(
                    0.05, minimum=0, maximum=1, meaning="share of its data a client gives to all"
                ),
            },
            formula=f"{_BY_SAMPLES}; every client trains on its own samples and on a share of "
            "everybody else's: no privacy for these",
            source="Zhao et al. 2018; the chapter on aggregation",
            client_cost="E epochs, of its own samples and the shared ones",
            server_cost="1 pass",
        ),
        "centralised": Method(
            title="Centralised",
            rule=_rule("mean:Mean", weights="samples"),
            pooling=_part("federation.pooling:Central"),
            formula="one place trains on all samples, as many in a round as the cohort would",
            source="no federation: the ceiling",
            up="0",
            down="0",
            client_cost="E epochs of the cohort's samples, one after another",
            server_cost="1 pass",
        ),
        "local-only": Method(
            title="Local only",
            rule=_rule("no_aggregation:NoAggregation"),
            personalisation=_personal("local_only:LocalOnly"),
            formula="step = 0; every client trains a model of its own",
            source="no federation: the floor",
            up="0",
            down="0",
            server_cost="0 passes",
        ),
    }
)
