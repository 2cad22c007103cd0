"""Accuracy at every value of every setting that an experiment sweeps."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fedsdg.analysis.formatting import CUT, MISSING, few_seeds, is_cut, percent
from fedsdg.analysis.frames import PLACE, groups, records
from fedsdg.analysis.horizon import horizon_notes
from fedsdg.analysis.hyperparameters import hyperparameters, symbol
from fedsdg.analysis.inference import SHOWN_FROM
from fedsdg.analysis.names import GLOBAL, Metric, method_order, method_title
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.sweeps import panels, sweeps
from fedsdg.analysis.tables.layout import Entry, Table, block

#: What tells a row of the raw numbers.
_KEYS = [*PLACE, "key", "type", "others", "value", "metric"]
_CAPTION = (
    "Personal and global accuracy (%) at each value of a setting, the other settings that vary as "
    "named"
)
_INTERVAL = "mean ± half-width of the 95 % Student-t interval over seeds"


def sensitivity(summary: Summary) -> Table:
    """A block for each setting: a row for each value, method and combination of the others."""
    rows = sweeps(summary)
    shown = (summary.personal, GLOBAL)
    heads = ["Method", "Others", "Value", *(metric.title for metric in shown)]
    blocks = [
        block(f"{where}, {symbol(key)}", heads, _lines(part, shown))
        for where, key, part in panels(rows)
    ]
    notes: tuple[str, ...] = () if blocks else ("No setting varies in this experiment.",)
    if blocks:
        cut = any(is_cut(e.text) for one in blocks for row in one.rows for e in row[3:])
        notes = (*few_seeds(rows["n"], SHOWN_FROM), *((CUT,) if cut else ()))
        notes += horizon_notes(summary)
    drawn = tuple(blocks) or (block("", heads, []),)
    caption = f"{_CAPTION}; {summary.rounds[summary.reported]}: {_INTERVAL}. "
    caption += hyperparameters(summary.runs)
    shares = {name: f"{name} (share)" for name in ("mean", "low", "high")}
    return Table("sensitivity", caption, drawn, notes, rows.rename(columns=shares))


def _lines(part: pd.DataFrame, shown: Sequence[Metric]) -> list[list[str | Entry]]:
    values = {value: i for i, value in enumerate(dict.fromkeys(part["value"]))}
    lines = {
        (method_order(kind), others, values[value]): own
        for (kind, others, value), own in groups(part, "type", "others", "value")
    }
    lines_shown: list[list[str | Entry]] = []
    for _, own in sorted(lines.items(), key=lambda item: item[0]):
        first = own.iloc[0]
        cells = [_cell(own[own["metric"] == metric.key]) for metric in shown]
        lines_shown.append([method_title(first["type"]), first["others"], first["value"], *cells])
    return lines_shown


def _cell(own: pd.DataFrame) -> Entry:
    if own.empty:
        return Entry(MISSING)
    n, mean, high = own.iloc[0][["n", "mean", "high"]]
    entry = Entry(percent(mean, high - mean if n >= SHOWN_FROM else None))
    return entry.of("mean (share)", records(own[_KEYS])[0])
