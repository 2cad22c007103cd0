"""How well weights and other credits of clients follow their label noise and Shapley values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from fedsdg.analysis.contributions import MEASURES, YARDSTICKS, correlations, measures
from fedsdg.analysis.formatting import MISSING, few_seeds
from fedsdg.analysis.frames import PLACE, groups, places
from fedsdg.analysis.hyperparameters import hyperparameters
from fedsdg.analysis.inference import SHOWN_FROM
from fedsdg.analysis.names import method_order, method_title
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables.layout import Entry, Table, block

#: What tells a row of the raw numbers.
_KEYS = (*PLACE, "scenario", "method", "measure", "yardstick")
_CAPTION = (
    "Correlation over clients between what a method says they are worth (means over the rounds) "
    "and their share of wrong labels, or their exact Shapley value in the last round: Spearman's ρ "
    "within a run, mean over seeds by Fisher's z [95 % interval, Student-t of z], and Pearson's in "
    "round brackets. Good is −1 for wrong labels and +1 for Shapley values"
)


def label_noise(summary: Summary) -> Table:
    """A block for each place: a row for each scenario, method and measure."""
    rows = correlations(measures(summary))
    heads = ["Method", "Measure", *YARDSTICKS.values()]
    blocks = []
    for where, here in places(rows):
        for scenario, part in groups(here, "scenario"):
            title = ", ".join(text for text in (where, scenario) if text)
            blocks.append(block(title, heads, _lines(part)))
    notes: tuple[str, ...] = ("No client of this experiment has label noise.",)
    if blocks:
        notes = few_seeds(rows["runs"], SHOWN_FROM)
    shown = tuple(blocks) or (block("", heads, []),)
    caption = f"{_CAPTION}. {hyperparameters(summary.runs)}"
    return Table("label_noise", caption, shown, notes, rows)


def _lines(part: pd.DataFrame) -> list[list[str | Entry]]:
    found = {(r["method"], r["measure"], r["yardstick"]): r for r in part.to_dict("records")}
    lines: list[list[str | Entry]] = []
    for method in sorted(part["method"].unique(), key=method_order):
        for measure, title in MEASURES.items():
            cells = [_cell(found.get((method, measure, yardstick))) for yardstick in YARDSTICKS]
            if any(cell.text != MISSING for cell in cells):
                lines.append([method_title(method), title.partition(" (")[0], *cells])
    return lines


def _cell(row: Mapping[Any, Any] | None) -> Entry:
    if row is None:
        return Entry(MISSING)
    shown = row["runs"] >= SHOWN_FROM
    interval = f" [{row['low']:+.2f}, {row['high']:+.2f}]" if shown else ""
    text = f"{row['spearman']:+.2f}{interval} ({row['pearson']:+.2f})".replace("-", "−")
    return Entry(text).of("spearman", {name: row[name] for name in _KEYS})
