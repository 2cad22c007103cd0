"""What clients have of their own models, and what the shared model is worth, method by method."""

from __future__ import annotations

import pandas as pd

from fedsdg.analysis.frames import PLACE, over_seeds, split_scenario
from fedsdg.analysis.summary import Summary


def personal_and_global(summary: Summary) -> pd.DataFrame:
    """Rows per ``PLACE``, scenario, method and metric: ``n``, ``mean``, ``low``, ``high``.

    The metrics are personal accuracy, that of the worst decile, and global accuracy; the first
    two as clients expect it where the runs have that, otherwise on their own shards.
    """
    keys = [metric.key for metric in summary.headlines]
    rows = [
        {
            "dataset": cell.setting.dataset,
            "clients": cell.setting.clients,
            "skew": cell.skew,
            "method": method,
            "metric": key,
            "value": value,
        }
        for key in keys
        for cell in summary.cells()
        for method, values in summary.reported_values(cell, key).items()
        for value in values.values()
    ]
    columns = ["dataset", "clients", "skew", "method", "metric", "value"]
    frame = split_scenario(pd.DataFrame(rows, columns=columns))
    return over_seeds(frame, [*PLACE, "scenario", "method", "metric"], "value")
