"""The methods: which rule, terms and personalisation each is made of, by family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

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
from fedsdg.federation.data_sharing import Central, SharedSamples
from fedsdg.federation.personalisation import (
    Alternating,
    Apfl,
    Ditto,
    DualAdapter,
    DualPath,
    FineTune,
    FrozenA,
    GatedHead,
    Interpolate,
    LocalOnly,
    OwnHead,
    PrivateB,
    PrivateHead,
    ResidualHead,
)
from fedsdg.federation.stopping import Inexactness
from fedsdg.federation.terms import ControlVariates, Curvature, Proximal
from fedsdg.methods.formulas import FORMULAS
from fedsdg.methods.method import Method

_UNIFORM = Mean(weights="uniform")
_OFFICIAL = DualPath(
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
_ROWS = {
    "FedSDG": {
        "fedsdg": Method(
            "FedSDG",
            Alignment(),
            personalisation=DualPath(),
            fixed=("private_init", "clip_norm"),
            source="FedSDG, Eq. 3-11",
        ),
        "fedsdg-heldout": Method(
            "FedSDG, gates on held-out samples",
            Alignment(),
            personalisation=DualPath(gate_samples="held-out"),
            fixed=("private_init", "gate_samples", "clip_norm"),
            source="FedSDG, Eq. 3-11; gates: this benchmark",
        ),
        "fedsdg+head": Method(
            "FedSDG, own heads",
            Alignment(),
            personalisation=DualPath(head="private"),
            fixed=("head", "private_init", "clip_norm"),
            source="FedSDG, Eq. 3-11; heads as Arivazhagan et al. 2019",
        ),
        "fedsdg-official": Method(
            "FedSDG (authors' code)",
            _UNIFORM,
            personalisation=_OFFICIAL,
            training={"epochs": 5, "eta_m": 0.1},
            fixed=_OFFICIAL_FIXED,
            source="the authors' public code, June 2026, its defaults",
        ),
        "fedsdg-official-aligned": Method(
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
            source="the authors' public code, June 2026, with its alignment switched on",
        ),
        "fedsdg+screened": Method(
            "FedSDG (screened)",
            Screened(inner=Alignment()),
            personalisation=DualPath(),
            fixed=("private_init", "clip_norm"),
            source="FedSDG, Eq. 3-11; the chapter on robust aggregation",
        ),
        "fedsdg+geometric-median": Method(
            "FedSDG + geometric median",
            GeometricMedian(),
            personalisation=DualPath(),
            fixed=("private_init",),
            source="FedSDG, Eq. 3-9; Pillutla et al. 2022",
        ),
        "fedsdg+multikrum": Method(
            "FedSDG + Multi-Krum",
            MultiKrum(),
            personalisation=DualPath(),
            fixed=("private_init",),
            source="FedSDG, Eq. 3-9; Blanchard et al. 2017",
        ),
    },
    "Averaging": {
        "fedavg": Method("FedAvg (samples)", source="McMahan et al. 2017"),
        "fedavg-uniform": Method(
            "FedAvg (uniform)", _UNIFORM, fixed=("weights",), source="McMahan et al. 2017"
        ),
        "fedavg-sgd": Method(
            "FedAvg (SGD)", _UNIFORM, optimiser="sgd", source="McMahan et al. 2017"
        ),
        "fedprox": Method("FedProx", objective=(Proximal(),), source="Li et al. 2020"),
        "fedprox-inexact": Method(
            "FedProx (γ-inexact)",
            objective=(Proximal(),),
            stopping=Inexactness(),
            source="Li et al. 2020, Definition 2",
        ),
        "scaffold": Method(
            "SCAFFOLD",
            Scaffold(),
            objective=(ControlVariates(),),
            optimiser="sgd",
            source="Karimireddy et al. 2020, option II",
        ),
        "fedsgd": Method(
            "FedSGD",
            optimiser="sgd",
            training={"epochs": 1, "batch_size": None},
            source="McMahan et al. 2017: one full-batch gradient per round",
        ),
        "fedcurv": Method(
            "FedCurv", FedCurv(), objective=(Curvature(),), source="Shoham et al. 2019"
        ),
    },
    "Robust rules": {
        "krum": Method("Krum", Krum(), source="Blanchard et al. 2017"),
        "multikrum": Method("Multi-Krum", MultiKrum(), source="Blanchard et al. 2017"),
        "geometric-median": Method(
            "Geometric median", GeometricMedian(), source="Pillutla et al. 2022; Weiszfeld 1937"
        ),
        "coordinate-median": Method(
            "Coordinate median", CoordinateMedian(), source="Yin et al. 2018"
        ),
        "trimmed-mean": Method("Trimmed mean", TrimmedMean(), source="Yin et al. 2018"),
        "screened": Method(
            "Mean (screened)", Screened(inner=_UNIFORM), source="the chapter on robust aggregation"
        ),
    },
    "Personal models": {
        "fine-tune": Method(
            "FedAvg + fine-tuning", personalisation=FineTune(), source="Yu et al. 2020"
        ),
        "fedbabu": Method(
            "FedBABU",
            personalisation=FineTune(tunes="head", head="frozen"),
            fixed=("head",),
            source="Oh et al. 2022",
        ),
        "fedrep": Method("FedRep", personalisation=OwnHead(), source="Collins et al. 2021"),
        "fedper": Method("FedPer", personalisation=PrivateHead(), source="Arivazhagan et al. 2019"),
        "gated-head": Method(
            "Gated head",
            _UNIFORM,
            personalisation=GatedHead(),
            fixed=("gate_samples",),
            source="this benchmark",
        ),
        "gated-head-train": Method(
            "Gated head (no held-out part)",
            _UNIFORM,
            personalisation=GatedHead(gate_samples="all"),
            fixed=("gate_samples",),
            source="this benchmark, a control",
        ),
        "fed-rod": Method(
            "Fed-RoD", personalisation=ResidualHead(), source="Chen & Chao 2022, linear"
        ),
        "ditto": Method("Ditto", personalisation=Ditto(), source="Li et al. 2021"),
        "interpolate": Method(
            "Running mix",
            personalisation=Interpolate(),
            source="the chapter on personalisation; mixture as Deng et al. 2020",
        ),
        "apfl": Method("APFL", _UNIFORM, personalisation=Apfl(), source="Deng et al. 2020"),
    },
    "Within LoRA": {
        "ffa-lora": Method(
            "FFA-LoRA", _UNIFORM, personalisation=FrozenA(), source="Sun et al. 2024"
        ),
        "fedsa-lora": Method(
            "FedSA-LoRA", _UNIFORM, personalisation=PrivateB(), source="Guo et al. 2025"
        ),
        "rolora": Method(
            "RoLoRA", _UNIFORM, personalisation=Alternating(), source="Chen et al. 2025"
        ),
        "feddpa": Method(
            "FedDPA-T", _UNIFORM, personalisation=DualAdapter(), source="Yang et al. 2024, FedDPA-T"
        ),
    },
    "Several models": {
        "clustered": Method(
            "Clusters",
            Clustered(),
            heads_apart=True,
            fixed=("beta", "partials", "nearness"),
            source="Ghosh et al. 2020; the chapter on personalisation",
        ),
        "semi-global": Method(
            "Semi-global models",
            Clustered(beta=0.5),
            heads_apart=True,
            source="the chapter on personalisation",
        ),
        "pens": Method("PENS", Pens(), source="Onoszko et al. 2021"),
    },
    "Contribution": {
        "cgsv": Method("CGSV", Cgsv(), source="Xu et al. 2021, as in the chapter on contribution"),
        "cgsv-xu": Method("CGSV (as published)", CgsvXu(), source="Xu et al. 2021"),
        "focus": Method("FOCUS", Focus(), source="Chen et al. 2020"),
    },
    "References": {
        "data-sharing": Method(
            "Data sharing",
            sharing=SharedSamples(),
            source="Zhao et al. 2018; the chapter on aggregation",
        ),
        "centralised": Method(
            "Centralised",
            sharing=Central(),
            fixed=("weights",),
            source="no federation: the ceiling",
        ),
        "local-only": Method(
            "Local only",
            NoAggregation(),
            personalisation=LocalOnly(),
            source="no federation: the floor",
        ),
    },
}

FAMILIES: Mapping[str, Mapping[str, Method]] = MappingProxyType(
    {
        family: {name: replace(row, formula=FORMULAS[name]) for name, row in rows.items()}
        for family, rows in _ROWS.items()
    }
)
"""The methods of a family by name, by the family's title, in the order of tables and figures."""
METHODS: Mapping[str, Method] = MappingProxyType(
    {name: row for rows in FAMILIES.values() for name, row in rows.items()}
)
