"""Rules that withstand some arbitrary updates."""

from __future__ import annotations

from fedsdg.aggregation.rules.geometric_median import GeometricMedian
from fedsdg.aggregation.rules.krum import Krum
from fedsdg.aggregation.rules.mean import Mean
from fedsdg.aggregation.rules.median import CoordinateMedian
from fedsdg.aggregation.rules.multikrum import MultiKrum
from fedsdg.aggregation.rules.screened import Screened
from fedsdg.aggregation.rules.trimmed_mean import TrimmedMean
from fedsdg.methods.method import Method

FAMILY = "Robust rules"

ROWS = {
    "krum": Method(
        title="Krum",
        rule=Krum(),
        formula=("step = the Δ_k with the least sum of squared distances to M − f − 2 others"),
        source="Blanchard et al. 2017",
    ),
    "multikrum": Method(
        title="Multi-Krum",
        rule=MultiKrum(),
        formula="step = mean of the M − f updates with the least of Krum's sums, or of m",
        source="Blanchard et al. 2017",
    ),
    "geometric-median": Method(
        title="Geometric median",
        rule=GeometricMedian(),
        formula="step = argmin_z Σ_k ‖z − Δ_k‖",
        source="Pillutla et al. 2022; Weiszfeld 1937",
    ),
    "coordinate-median": Method(
        title="Coordinate median",
        rule=CoordinateMedian(),
        formula="step_j = median_k Δ_kj",
        source="Yin et al. 2018",
    ),
    "trimmed-mean": Method(
        title="Trimmed mean",
        rule=TrimmedMean(),
        formula="step_j = mean_k Δ_kj without the f largest and the f smallest",
        source="Yin et al. 2018",
    ),
    "screened": Method(
        title="Mean (screened)",
        rule=Screened(inner=Mean(weights="uniform")),
        formula=(
            "step = mean of the Δ_k of clients not blocked; blocked is who in `strikes` "
            "rounds in a row was an outlier by distance from the geometric median, or by "
            "angle"
        ),
        source="the chapter on robust aggregation",
    ),
}
