"""State of training at its end, row by row: a comparison is a result if both were steady."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from fedsdg.analysis.formatting import MISSING, points
from fedsdg.analysis.frames import CASE
from fedsdg.analysis.horizon import (
    EVALUATIONS,
    FIXED_BY_TUNING,
    GATES_MOVE,
    MARGIN,
    gate_moves,
    horizons,
)
from fedsdg.analysis.names import method_title, metric_named
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables.layout import Entry, Table, block, table_of_views

_CAPTION = (
    "Change of accuracy from the quarter of the rounds before the last to the last one, means of "
    "their evaluations, in percentage points over seeds [95 % Student-t interval]: steady, the "
    f"whole interval within ±{100 * MARGIN:.0f} point; rising or past its best, all of it above or "
    f"below 0; cannot tell, neither, or fewer than {EVALUATIONS} evaluations in a quarter. Where "
    "gates are learned: η_m × the local steps of a median client, and the mean gates of clients "
    f"that agree (A) and differ (B) in the end; below {GATES_MOVE:g} gates cannot have moved"
)
#: Columns of the raw numbers, in percentage points.
_POINTS = {name: f"{name} (percentage points)" for name in ("change", "low", "high")}
_GATES = {"travel": "η_m × steps", "gates_a": "gates A", "gates_b": "gates B"}


def horizon(summary: Summary) -> Table:
    """A block for each cell: a row for each method, a change and a word for each metric."""
    found, moves = horizons(summary), gate_moves(summary)
    metrics = [metric_named(key, summary.metrics) for key in found["metric"].unique()]
    gated = len(moves) > 0
    heads: list[str | tuple[str, str]] = ["Method", "rounds", "evaluations"]
    heads += [(metric.short, name) for metric in metrics for name in ("change", "horizon")]
    heads += [("gates", name.removeprefix("gates ")) for name in _GATES.values()] if gated else []
    blocks = []
    for cell in summary.cells():
        here = found[cell.matches(found)]
        lines = []
        for method, rows in here.groupby("method", sort=False):
            first = rows.iloc[0]
            line: list[str | Entry] = [method_title(str(method)), str(first["rounds"])]
            line.append(str(first["evaluations"]))
            by_metric = {row["metric"]: row for row in rows.to_dict("records")}
            for metric in metrics:
                line += _change(by_metric[metric.key])
            if gated:
                line += _gates(moves[cell.matches(moves) & (moves["method"] == method)])
            lines.append(line)
        if lines:
            title = summary.cell_title(cell).replace("\n", ", ")
            blocks.append(block(title, heads, lines))
    raw = found.merge(moves, on=CASE, how="left")
    raw = raw.assign(**{name: 100 * raw[name] for name in _POINTS})
    raw = raw.rename(columns={**_POINTS, **_GATES})
    if not gated:
        raw = raw.drop(columns=[*_GATES.values()])
    none = "No finished run of this experiment was evaluated."
    return table_of_views(summary, "horizon", _CAPTION, blocks, raw, without=none)


def _change(row: Mapping[Any, Any]) -> list[str | Entry]:
    """The change with its interval, and the word."""
    keys = {name: row[name] for name in (*CASE, "metric")}
    text = MISSING if pd.isna(row["change"]) else points(row["change"])
    if not pd.isna(row["low"]):
        text += f" [{points(row['low'])}, {points(row['high'])}]"
    return [Entry(text).of(_POINTS["change"], keys), Entry(row["word"]).of("word", keys)]


def _gates(rows: pd.DataFrame) -> list[str | Entry]:
    """η_m × steps and the mean gates; a row that learns none has none."""
    if rows.empty:
        return [MISSING] * len(_GATES)
    row = rows.iloc[0]
    travel = f"{row['travel']:.1f}"
    if row["travel"] < GATES_MOVE:
        travel += f" ({FIXED_BY_TUNING})"
    shares = [MISSING if pd.isna(row[n]) else f"{row[n]:.2f}" for n in ("gates_a", "gates_b")]
    return [travel, *shares]
