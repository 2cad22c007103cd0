"""Accuracy at every value of every setting that an experiment sweeps."""

from __future__ import annotations

import pandas as pd

from fedsdg.analysis.formatting import MISSING, percent
from fedsdg.analysis.frames import groups
from fedsdg.analysis.hyperparameters import hyperparameters, symbol
from fedsdg.analysis.names import GLOBAL, PERSONAL, method_order, method_title
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.sweeps import panels, sweeps
from fedsdg.analysis.tables.layout import Table, block

_CAPTION = (
    "Personal and global accuracy (%) in the last round at each value of a setting, the other "
    "settings that vary as named: mean ± half-width of the 95 % Student-t interval over seeds"
)


def sensitivity(summary: Summary) -> Table:
    """A block for each setting: a row for each value, method and combination of the others."""
    rows = sweeps(summary)
    heads = ["Method", "Others", "Value", PERSONAL.title, GLOBAL.title]
    blocks = [
        block(f"{where}, {symbol(key)}", heads, _lines(part)) for where, key, part in panels(rows)
    ]
    notes = () if blocks else ("No setting varies in this experiment.",)
    shown = tuple(blocks) or (block("", heads, []),)
    caption = f"{_CAPTION}. {hyperparameters(summary.runs)}"
    shares = {name: f"{name} (share)" for name in ("mean", "low", "high")}
    return Table("sensitivity", caption, shown, notes, rows.rename(columns=shares))


def _lines(part: pd.DataFrame) -> list[list[str]]:
    values = {value: i for i, value in enumerate(dict.fromkeys(part["value"]))}
    lines = {
        (method_order(kind), others, values[value]): own
        for (kind, others, value), own in groups(part, "type", "others", "value")
    }
    shown = []
    for _, own in sorted(lines.items(), key=lambda item: item[0]):
        first = own.iloc[0]
        cells = [_cell(own[own["metric"] == metric.key]) for metric in (PERSONAL, GLOBAL)]
        shown.append([method_title(first["type"]), first["others"], first["value"], *cells])
    return shown


def _cell(own: pd.DataFrame) -> str:
    if own.empty:
        return MISSING
    n, mean, high = own.iloc[0][["n", "mean", "high"]]
    return percent(mean, high - mean if n > 1 else None)
