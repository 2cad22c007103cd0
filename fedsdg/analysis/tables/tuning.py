"""The hyper-parameters that the search of an experiment found, and how hard it looked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from fedsdg.analysis.formatting import percent, setting
from fedsdg.analysis.hyperparameters import symbol
from fedsdg.analysis.names import method_title
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables.layout import Entry, Table, block
from fedsdg.analysis.tuning import searched

_HEADS = ("Method", "Trials", "Best values", "Validation (%)", "Mean trial (%)", "At an edge")
_COLUMNS = (
    "method",
    "trials",
    "failed",
    "best",
    "score (share)",
    "mean (share)",
    "edges",
)


def tuning(summary: Summary) -> Table:
    """A row for each method of the search."""
    lines: list[list[str | Entry]] = []
    rows = []
    for label, method in searched(summary):
        best = method["best"]
        named = _named(best["parameters"])
        edges = ", ".join(f"{symbol(name)} {side}" for name, side in method["edges"].items())
        mean = method["expected_best"][0]
        trials = len(method["expected_best"])
        count = f"{trials} ({method['failed']} failed)" if method["failed"] else str(trials)
        score = percent(best["score"], None)
        shown = {"score (share)": score, "mean (share)": percent(mean, None)}
        scores = [Entry(text).of(name, {"method": label}) for name, text in shown.items()]
        lines.append([method_title(label), count, named, *scores, edges or "–"])
        rows.append((label, trials, method["failed"], named, best["score"], mean, edges))
    raw = pd.DataFrame(rows, columns=_COLUMNS)
    notes = () if lines else ("No search was made of this experiment's hyper-parameters.",)
    return Table("tuning", _caption(summary), (block("", _HEADS, lines),), notes, raw)


def _named(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{symbol(name)} = {setting(value)}" for name, value in parameters.items())


def _caption(summary: Summary) -> str:
    text = "Hyper-parameters of the search, which tries equally many points of every method's space"
    found = summary.search()
    if found is None:
        return f"{text}."
    seeds = ", ".join(map(str, found["seeds"]))
    skews = ", ".join(found["skews"])
    return f"{text}; criterion: {found['criterion']}. Seeds {seeds}; skews {skews}."
