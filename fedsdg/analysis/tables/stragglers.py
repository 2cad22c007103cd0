"""What slow clients cost: simulated time, idle time, and work that was done for nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedsdg.analysis.formatting import MISSING
from fedsdg.analysis.frames import PLACE, places
from fedsdg.analysis.horizon import horizon_notes
from fedsdg.analysis.hyperparameters import hyperparameters
from fedsdg.analysis.names import GLOBAL, method_order, method_title, natural_order
from fedsdg.analysis.simulated_time import LACKING, costs_of_waiting
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables.layout import Entry, Table, block

_CAPTION = (
    "Simulated time of a whole run and what became of the clients' work, means over seeds: seconds "
    "on the simulated clock; seconds that clients stood idle, all together; uploads that were "
    "used, that missed the end of their round, and that were discarded (also as a share of all); "
    "clients that were drawn while still busy; clients that dropped out{lacking}; accuracy (%)"
)
_SHOWN = (
    ("simulated_seconds", "seconds", 1),
    ("idle_seconds", "idle", 1),
    ("arrived", "used", 1),
    ("late", "late", 1),
    ("discarded", "discarded", 1),
    ("discarded_share", "discarded (%)", 100),
    ("passed_over", "passed over", 1),
    ("dropped", "dropped", 1),
    (LACKING, "out of time", 1),
)


def stragglers(summary: Summary) -> Table:
    """A block for each place: a row for each scenario and method with a simulated clock."""
    rows = costs_of_waiting(summary)
    accuracies = [(m.key, m.short, 100) for m in (summary.personal, GLOBAL)]
    shown = [column for column in _SHOWN if column[0] != LACKING or LACKING in rows]
    columns = (*shown, *accuracies)
    heads = ["Scenario", "Method", *(heading for _, heading, _ in columns)]
    blocks = []
    for where, here in places(rows):
        ordered = sorted(
            here.to_dict("records"),
            key=lambda row: (natural_order(row["scenario"]), method_order(row["method"])),
        )
        blocks.append(block(where, heads, [_line(row, columns) for row in ordered]))
    none = ("No run of this experiment kept simulated time.",)
    notes = horizon_notes(summary) if blocks else none
    tables = tuple(blocks) or (block("", heads, []),)
    lacking = "; clients whose time did not suffice for an update" if LACKING in rows else ""
    when = summary.rounds[summary.reported]
    caption = f"{_CAPTION.format(lacking=lacking)}, {when}. {hyperparameters(summary.runs)}"
    return Table("stragglers", caption, tables, notes, rows)


def _line(row: Mapping[Any, Any], columns: Sequence[tuple[str, str, int]]) -> list[str | Entry]:
    place = {name: row[name] for name in (*PLACE, "scenario", "method")}
    values = [Entry(_number(row[name] * scale, name)).of(name, place) for name, _, scale in columns]
    return [row["scenario"], method_title(row["method"]), *values]


def _number(value: float, name: str) -> str:
    if pd.isna(value):
        return MISSING
    return f"{value:,.0f}" if name.endswith("seconds") and value >= 100 else f"{value:,.1f}"
