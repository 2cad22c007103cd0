"""What clients have of their own models, and what the shared model is worth, method by method."""

from __future__ import annotations

import pandas as pd

from fedsdg.analysis.frames import PLACE, over_seeds, split_scenario
from fedsdg.analysis.names import GLOBAL, WORST
from fedsdg.analysis.reported import EXPECTED, EXPECTED_WORST, personal_metric, reported
from fedsdg.analysis.summary import Summary


def personal_and_global(summary: Summary) -> pd.DataFrame:
    """Rows per ``PLACE``, scenario, method and metric: ``n``, ``mean``, ``low``, ``high``.

    The metrics are personal accuracy, that of the worst decile, and global accuracy; the first
    two as clients expect it where the runs have that, otherwise on their own shards.
    """
    personal = personal_metric(key for run in summary.runs for key in run if run[key] is not None)
    worst = EXPECTED_WORST if personal == EXPECTED else WORST
    keys = (personal.key, worst.key, GLOBAL.key)
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
        for method, values in reported(summary.at(cell), key).items()
        for value in values.values()
    ]
    columns = ["dataset", "clients", "skew", "method", "metric", "value"]
    frame = split_scenario(pd.DataFrame(rows, columns=columns))
    return over_seeds(frame, [*PLACE, "scenario", "method", "metric"], "value")
