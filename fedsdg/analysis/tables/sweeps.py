"""Accuracy at every value of the settings that an experiment sweeps; results of a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from fedsdg.analysis.formatting import percent, setting
from fedsdg.analysis.hyperparameters import symbol
from fedsdg.analysis.names import GLOBAL
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables.layout import (
    Column,
    Table,
    number,
    pivot,
    share,
    table_of_means,
)
from fedsdg.analysis.views.sweeps import panels, searched, sweeps

_SENSITIVITY = (
    "Personal and global accuracy (%) at each value of a setting, the other settings that vary as "
    "named; {round}: mean ± half-width of the 95 % Student-t interval over seeds"
)
_TUNING = "Hyper-parameters of the search, which tries equally many points of every method's space"


def sensitivity(summary: Summary) -> Table:
    """A block for each setting: a row for each value, method and combination of the others."""
    view = sweeps(summary)
    columns = [
        Column(metric.title, share, "mean (share)", {"metric": metric.key})
        for metric in (summary.personal, GLOBAL)
    ]
    lines = {"type": "Method", "others": "Others", "value": "Value"}
    blocks = [
        pivot(f"{where}, {symbol(key)}", part, lines, columns) for where, key, part in panels(view)
    ]
    none = "No setting varies in this experiment."
    return table_of_means(summary, "sensitivity", _SENSITIVITY, blocks, view, none)


def tuning(summary: Summary) -> Table:
    """A row for each method of the search."""
    raw = pd.DataFrame(
        [
            {
                "method": label,
                "trials": len(method["expected_best"]),
                "failed": method["failed"],
                "best": _named(method["best"]["parameters"]),
                "score (share)": method["best"]["score"],
                "mean (share)": method["expected_best"][0],
                "edges": ", ".join(f"{symbol(n)} {side}" for n, side in method["edges"].items()),
            }
            for label, method in searched(summary)
        ],
        columns=["method", "trials", "failed", "best", "score (share)", "mean (share)", "edges"],
    )
    columns = [
        Column("Trials", _trials),
        Column("Best values", lambda row: str(row["best"])),
        number("score (share)", "Validation (%)", _percent),
        number("mean (share)", "Mean trial (%)", _percent),
        Column("At an edge", lambda row: row["edges"] or "–"),
    ]
    caption, search = _TUNING, summary.search()
    if search is not None:
        seeds, skews = ", ".join(map(str, search["seeds"])), ", ".join(search["skews"])
        caption += f"; criterion: {search['criterion']}. Seeds {seeds}; skews {skews}"
    notes = () if len(raw) else ("No search was made of this experiment's hyper-parameters.",)
    lines = pivot("", raw, {"method": "Method"}, columns)
    return Table("tuning", f"{caption}.", (lines,), notes, raw)


def _percent(value: float) -> str:
    return percent(value, None)


def _trials(row: Mapping[str, Any]) -> str:
    failed = f" ({row['failed']} failed)" if row["failed"] else ""
    return f"{row['trials']}{failed}"


def _named(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{symbol(name)} = {setting(value)}" for name, value in parameters.items())
