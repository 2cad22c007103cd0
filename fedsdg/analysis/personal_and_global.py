"""What clients have of their own models, and what the shared model is worth, method by method."""

from __future__ import annotations

import pandas as pd

from fedsdg.analysis.frames import PLACE, finished, over_seeds
from fedsdg.analysis.names import METRICS
from fedsdg.analysis.summary import Summary


def personal_and_global(summary: Summary) -> pd.DataFrame:
    """Rows per ``PLACE``, scenario, method and metric: ``n``, ``mean``, ``low``, ``high``."""
    runs, line = finished(summary), [*PLACE, "scenario", "method"]
    parts = [over_seeds(runs, line, metric.key).assign(metric=metric.key) for metric in METRICS]
    return pd.concat(parts, ignore_index=True)
