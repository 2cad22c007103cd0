"""The subject minus every rival: paired differences with intervals, described and not tested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsdg.analysis.formatting import MISSING, few_seeds, points
from fedsdg.analysis.horizon import horizon_notes
from fedsdg.analysis.hyperparameters import hyperparameters
from fedsdg.analysis.inference import SHOWN_FROM
from fedsdg.analysis.names import BETTER_BASELINE, method_order, method_title, skew_title
from fedsdg.analysis.summary import Summary
from fedsdg.analysis.tables.layout import Block, Entry, Table

_CAPTION = (
    " each other method in percentage points: mean of the paired differences over "
    "seeds [95 % Student-t interval]. These differences are described, not tested: verdicts are "
    "for the primary comparisons that were named beforehand"
)
_BETTER_NOTE = (
    f"{method_title(BETTER_BASELINE)}: whichever weighting of FedAvg has the higher mean there; "
    "it is chosen after the fact, in the rival's favour, and is no further test."
)
#: Of the raw numbers: what tells a row, and the column that is printed.
_KEYS = ("dataset", "clients", "skew", "metric", "at", "rival")
_MEAN = "mean (percentage points)"
_SHARES = ("subject_mean", "rival_mean", "mean", "half_width", "low", "high")


def differences(summary: Summary) -> Table:
    """Blocks by metric; the CSV has the validation-selected round and p-values as well."""
    records = summary.rows("differences")
    subject = summary.roles.subject
    minus = f"{method_title(subject)} minus"
    table = {
        (row["dataset"], row["clients"], row["skew"], row["metric"], row["rival"]): row
        for row in records
        if row["at"] == summary.reported
    }
    blocks = []
    for setting in summary.settings():
        skews = summary.skews(setting)
        rivals = {key[4] for key in table if key[:2] == (setting.dataset, setting.clients)}
        for metric in summary.metrics:
            rows = []
            for rival in sorted(rivals, key=method_order):
                found = [
                    table.get((setting.dataset, setting.clients, skew, metric.key, rival))
                    for skew in skews
                ]
                if any(found):
                    rows.append((Entry(method_title(rival)), *map(_entry, found)))
            heads = [("", minus), *(("", skew_title(skew)) for skew in skews)]
            title = f"{setting.title}, {metric.title}, {summary.rounds[summary.reported]}"
            blocks.append(Block(title, tuple(heads), tuple(rows)))
    notes = [_BETTER_NOTE] if any(key[4] == BETTER_BASELINE for key in table) else []
    if not records:
        notes.append(f"No rows: the experiment has no finished run of '{subject}' beside others.")
    notes += few_seeds((row["n"] for row in table.values()), SHOWN_FROM)
    notes += horizon_notes(summary)
    raw = summary.frame("differences").drop(columns="experiment")
    raw[list(_SHARES)] = raw[list(_SHARES)] * 100
    raw = raw.rename(columns={name: f"{name} (percentage points)" for name in _SHARES})
    caption = f"{minus}{_CAPTION}. {hyperparameters(summary.runs)}"
    return Table("differences", caption, tuple(blocks), tuple(notes), raw)


def _entry(row: Mapping[str, Any] | None) -> Entry:
    entry = Entry(_difference(row))
    return entry if row is None else entry.of(_MEAN, {name: row[name] for name in _KEYS})


def _difference(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return MISSING
    mean = points(row["mean"])
    if row["low"] is None or row["n"] < SHOWN_FROM:
        return f"{mean} (n = {row['n']})"
    return f"{mean} [{points(max(row['low'], -1.0))}, {points(min(row['high'], 1.0))}]"
