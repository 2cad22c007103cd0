"""Rules under attack: accuracy by attack and share of attackers, and whom a screen caught."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from fedsdg.analysis.formatting import CUT, MISSING, few_seeds, is_cut, percent
from fedsdg.analysis.frames import PLACE, groups, places
from fedsdg.analysis.horizon import horizon_notes
from fedsdg.analysis.hyperparameters import hyperparameters
from fedsdg.analysis.inference import SHOWN_FROM
from fedsdg.analysis.names import method_order, method_title, natural_order
from fedsdg.analysis.robustness import ARENA, accuracy_by_share, detections
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables.layout import Block, Entry, Table, block, mark_best

_BYZANTINE = (
    "Global accuracy (%), {round}, by attack and share of the clients that attack: mean "
    "± half-width of the 95 % Student-t interval over seeds; bold: highest mean of a column. "
    "Without attackers a run is the same under every attack"
)
_DETECTION = (
    "Whom a method blocked by the end of the run, and how many honest clients among them wrongly; "
    "precision is the share of attackers among the blocked, recall the share of the attackers that "
    "was blocked, delay the rounds from an attacker's first upload to its blocking. Means over "
    "seeds; precision and delay over the runs in which somebody, or an attacker, was blocked"
)


def byzantine(summary: Summary) -> Table:
    """A block for each attack: methods by share."""
    rows = accuracy_by_share(summary)
    blocks = [
        _by_share(summary, f"{where}, {attack}", part)
        for where, here in places(rows)
        for attack, part in groups(here, "attack")
    ]
    notes: tuple[str, ...] = ("No run of this experiment was attacked.",)
    if blocks:
        cut = any(is_cut(e.text) for one in blocks for row in one.rows for e in row[1:])
        notes = (*few_seeds(rows["n"], SHOWN_FROM), *((CUT,) if cut else ()))
        notes += horizon_notes(summary)
    shown = tuple(blocks) or (block("", ["Method"], []),)
    caption = _BYZANTINE.format(round=summary.rounds[summary.reported])
    caption += f". {hyperparameters(summary.runs)}"
    shares = {name: f"{name} (share)" for name in ("mean", "low", "high")}
    return Table("byzantine", caption, shown, notes, rows.rename(columns=shares))


def _by_share(summary: Summary, title: str, part: pd.DataFrame) -> Block:
    methods = sorted(part["method"].unique(), key=method_order)
    shares = sorted(part["share"].unique())
    table = {(row["method"], row["share"]): row for row in part.to_dict("records")}
    columns = []
    for share in shares:
        column: list[tuple[str, float | None]] = []
        for method in methods:
            row = table.get((method, share))
            if row is None:
                column.append((MISSING, None))
            else:
                width = row["high"] - row["mean"] if row["n"] >= SHOWN_FROM else None
                value = None if summary.roles.is_ceiling(method) else row["mean"]
                column.append((percent(row["mean"], width), value))
        columns.append(column)
    filled = mark_best(columns)
    lines = tuple(
        (
            Entry(method_title(method)),
            *(
                _standing(column[i], table.get((method, share)))
                for column, share in zip(filled, shares, strict=True)
            ),
        )
        for i, method in enumerate(methods)
    )
    heads = (("", "Method"), *(("attackers", f"{100 * share:.0f} %") for share in shares))
    return Block(title, heads, lines)


def _standing(entry: Entry, row: Mapping[Any, Any] | None) -> Entry:
    return entry if row is None else entry.of("mean (share)", {key: row[key] for key in ARENA})


def detection(summary: Summary) -> Table:
    """A block for each place: a row for each scenario and method that blocks clients."""
    runs = detections(summary)
    line = [*PLACE, "scenario", "method"]
    measured = ["attackers", "blocked", "wrongly", "precision", "recall", "delay"]
    grouped = runs.groupby(line, sort=False)
    rows = grouped[measured].mean().assign(runs=grouped.size()).reset_index()
    heads = ["Scenario", "Method", "runs", "attackers", "blocked", "wrongly"]
    heads += ["precision (%)", "recall (%)", "delay (rounds)"]
    blocks = []
    for where, here in places(rows):
        ordered = sorted(
            here.to_dict("records"),
            key=lambda row: (natural_order(row["scenario"]), method_order(row["method"])),
        )
        blocks.append(block(where, heads, [_line(row) for row in ordered]))
    notes = () if blocks else ("No method of this experiment blocks clients.",)
    shown = tuple(blocks) or (block("", heads, []),)
    caption = f"{_DETECTION}. {hyperparameters(summary.runs)}"
    return Table("detection", caption, shown, notes, runs)


def _line(row: Mapping[Any, Any]) -> list[str | Entry]:
    place = {name: row[name] for name in (*PLACE, "scenario", "method")}
    shown = {name: _number(row[name], 1) for name in ("attackers", "blocked", "wrongly")}
    shown |= {name: _number(100 * row[name], 0) for name in ("precision", "recall")}
    shown |= {"delay": _number(row["delay"], 1)}
    numbers = [Entry(text).of(name, place) for name, text in shown.items()]
    return [row["scenario"], method_title(row["method"]), str(row["runs"]), *numbers]


def _number(value: float, decimals: int) -> str:
    return MISSING if pd.isna(value) else f"{value:.{decimals}f}"
