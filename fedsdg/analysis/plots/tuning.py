"""Where the axis of a search's scores ends."""

from __future__ import annotations

import pandas as pd

#: Panels are to be read against each other, not against the worst trial of all.
_LOW_SHARE = 0.25


def limits(rows: pd.DataFrame) -> tuple[float, float]:
    """All lines, and all trials but the worst quarter where that lies far below; in percent."""
    values = [rows["expected_best"].min(), rows["score"].quantile(_LOW_SHARE)]
    low, high = 100 * min(values), 100 * max(rows["expected_best"].max(), rows["score"].max())
    room = 0.05 * max(high - low, 1.0)
    return max(low - room, 0.0), min(high + room, 100.0 + room)
