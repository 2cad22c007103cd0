"""No federation, or less of it: lines to measure by."""

from __future__ import annotations

from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.no_aggregation import NoAggregation
from fedsdg.federation.data_sharing import Central, SharedSamples
from fedsdg.federation.personalisation import LocalOnly
from fedsdg.methods.method import Method

FAMILY = "References"

ROWS = {
    "data-sharing": Method(
        title="Data sharing",
        rule=Mean(),
        sharing=SharedSamples(),
        formula=(
            "step = Σ_k n_k Δ_k / Σ_j n_j; every client trains on its own samples and on "
            "a share of everybody else's: no privacy for these"
        ),
        source="Zhao et al. 2018; the chapter on aggregation",
    ),
    "centralised": Method(
        title="Centralised",
        rule=Mean(),
        sharing=Central(),
        fixed=("weights",),
        formula="one place trains on all samples, as many in a round as the cohort would",
        source="no federation: the ceiling",
    ),
    "local-only": Method(
        title="Local only",
        rule=NoAggregation(),
        personalisation=LocalOnly(),
        formula="step = 0; every client trains a model of its own",
        source="no federation: the floor",
    ),
}
