"""Accuracy of the clients that agree (A) and of those that do not (B), method by method."""

from __future__ import annotations

import pandas as pd

from fedsdg.analysis.frames import PLACE, over_seeds, split_scenario
from fedsdg.analysis.names import AGREEING, DIFFERING
from fedsdg.analysis.summary import Summary


def group_accuracy(summary: Summary) -> pd.DataFrame:
    """Rows per ``PLACE``, scenario, method and metric (of A, of B): ``n``, ``mean``, ``low``,
    ``high``, of the reported expected accuracy. No rows where clients are of one kind."""
    rows = [
        {
            "dataset": cell.setting.dataset,
            "clients": cell.setting.clients,
            "skew": cell.skew,
            "method": method,
            "metric": metric.key,
            "value": value,
        }
        for metric in (AGREEING, DIFFERING)
        for cell in summary.cells()
        for method, values in summary.reported_values(cell, metric.key).items()
        for value in values.values()
    ]
    columns = ["dataset", "clients", "skew", "method", "metric", "value"]
    frame = split_scenario(pd.DataFrame(rows, columns=columns))
    return over_seeds(frame, [*PLACE, "scenario", "method", "metric"], "value")
