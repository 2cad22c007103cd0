"""Accuracy by method and skew: the README's table, groups of clients, and metrics one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedsdg.analysis.formatting import CUT, MISSING, few_seeds, is_cut, percent
from fedsdg.analysis.horizon import horizon_notes
from fedsdg.analysis.hyperparameters import hyperparameters, ranges
from fedsdg.analysis.inference import SHOWN_FROM, mean_interval, shown_half_width
from fedsdg.analysis.names import (
    AGREEING,
    DIFFERING,
    EXPECTED,
    EXPECTED_WORST,
    GLOBAL,
    NEW,
    NOT_RUN,
    OWN,
    OWN_WORST,
    PERSONAL,
    WORST,
    Metric,
    method_title,
    skew_title,
)
from fedsdg.analysis.summary import Cell, Setting, Summary
from fedsdg.analysis.tables.layout import Block, Entry, Table, block, mark_best

_DEFINITIONS = {
    EXPECTED: "Personal accuracy (%): every client with its own model on the whole global test set "
    "as the client sees it (its labels, its view of the images, weighted by its class shares), "
    "mean over clients",
    EXPECTED_WORST: "Worst-decile accuracy (%): mean personal accuracy of the tenth of the clients "
    "that were ever drawn it is lowest for",
    PERSONAL: "Personal accuracy (%): every client on its own test data with its own model, mean "
    "over clients",
    OWN: "On the own shard: every client on its own test data with its own model",
    WORST: "Worst-decile accuracy (%): mean personal accuracy of the ⌈K/10⌉ clients it is lowest "
    "for",
    OWN_WORST: "On the own shard: of the accuracy on each client's own test data",
    GLOBAL: "Global accuracy (%): the shared parameters alone on the global test set",
}
_INTERVAL = (
    "mean ± half-width of the 95 % Student-t interval over seeds; bold: highest mean of a column"
)
_GROUPS = (
    "Personal accuracy (%) of the clients that agree with the common labels and images (A), of "
    "those that differ (B), and of clients that never trained, each on the whole global test set "
    "as it sees it"
)
#: What a column of the raw numbers calls a reported value.
_RAW_NAMES = {"quarter": "last quarter", "selected": "selected round", "last": "last round"}


def personal_accuracy(summary: Summary) -> Table:
    """Mean over clients of the accuracy of their own models; on their own shards as well."""
    return _by_skew(summary, "personal_accuracy", [summary.personal, OWN])


def worst_decile(summary: Summary) -> Table:
    """Mean accuracy of the tenth of the clients with the worst; on their own shards as well."""
    return _by_skew(summary, "worst_decile", [summary.worst, OWN_WORST])


def global_accuracy(summary: Summary) -> Table:
    """Accuracy of the shared parameters alone on the global test set."""
    return _by_skew(summary, "global_accuracy", [GLOBAL])


def main(summary: Summary) -> Table:
    """Personal, worst-decile and global accuracy at every skew, one row per method."""
    caption = (
        "Personal, worst-decile and global accuracy (%), "
        f"{summary.rounds[summary.reported]}: {_INTERVAL}. {hyperparameters(summary.runs)}"
    )
    return _side_by_side(summary, "main", caption, summary.headlines)


def groups(summary: Summary) -> Table:
    """A and B apart: clients that agree and clients that differ, and new clients where any."""
    shown = [m for m in (AGREEING, DIFFERING, NEW) if m in summary.metrics]
    caption = f"{_GROUPS}; {summary.rounds[summary.reported]}: {_INTERVAL}. "
    caption += hyperparameters(summary.runs)
    if not shown:
        note = "No client of this experiment differs from the others, and none is held out."
        return Table("groups", caption, (block("", ["Method"], []),), (note,), _raw(summary, []))
    return _side_by_side(summary, "groups", caption, shown)


def _side_by_side(summary: Summary, name: str, caption: str, metrics: Sequence[Metric]) -> Table:
    """The metrics beside one another at every skew, as reported."""
    blocks = []
    for setting in summary.settings():
        columns = [
            (Cell(setting, skew), metric, summary.reported, skew_title(skew), metric.short)
            for skew in summary.skews(setting)
            for metric in metrics
        ]
        blocks.append(_block(summary, setting, columns, setting.title))
    notes = _notes(summary, metrics, blocks)
    return Table(name, caption, tuple(blocks), notes, _raw(summary, metrics))


def _by_skew(summary: Summary, name: str, wanted: Sequence[Metric]) -> Table:
    """A block for each metric that there is and each reported round, one column per skew."""
    metrics = [metric for metric in wanted if metric in summary.metrics]
    defined = ". ".join(_DEFINITIONS[metric] for metric in metrics)
    caption = f"{defined}; {_INTERVAL}. {hyperparameters(summary.runs)}"
    blocks = []
    for setting in summary.settings():
        for metric in metrics:
            for at, round_title in summary.rounds.items():
                columns = [
                    (Cell(setting, skew), metric, at, "", skew_title(skew))
                    for skew in summary.skews(setting)
                ]
                named = f"{metric.title}, {round_title}" if len(metrics) > 1 else round_title
                blocks.append(_block(summary, setting, columns, f"{setting.title}, {named}"))
    notes = _notes(summary, metrics, blocks)
    return Table(name, caption, tuple(blocks), notes, _raw(summary, metrics))


def _block(
    summary: Summary,
    setting: Setting,
    columns: Sequence[tuple[Cell, Metric, str, str, str]],
    title: str,
) -> Block:
    methods = summary.methods(setting)
    filled = mark_best(
        [
            [_ranked(summary, cell, metric, at, method) for method in methods]
            for cell, metric, at, _, _ in columns
        ]
    )
    rows = [
        (
            Entry(method_title(method)),
            *(
                column[i].of(_raw_name(at, "mean"), _place(cell, method, metric))
                for column, (cell, metric, at, _, _) in zip(filled, columns, strict=True)
            ),
        )
        for i, method in enumerate(methods)
    ]
    heads = [("", "Method"), *((group, heading) for _, _, _, group, heading in columns)]
    return Block(title, tuple(heads), tuple(rows))


def _ranked(
    summary: Summary, cell: Cell, metric: Metric, at: str, method: str
) -> tuple[str, float | None]:
    """An entry; the ceiling stands in the table without being the best of it."""
    text, value = _entry(summary, cell, metric, at, method)
    return text, None if summary.roles.is_ceiling(method) else value


def _entry(
    summary: Summary, cell: Cell, metric: Metric, at: str, method: str
) -> tuple[str, float | None]:
    """What stands in a cell and the mean it stands for; "(4/5 ok)" where runs are missing."""
    runs = [run for run in summary.at(cell) if run["method"] == method]
    if all(run["status"] == NOT_RUN for run in runs):
        return f"{MISSING} ({NOT_RUN})", None
    ok = sum(run["status"] == "ok" for run in runs)
    values = summary.values(cell, f"{at}_{metric.key}").get(method)
    tally = f" ({ok}/{len(runs)} ok)" if ok < len(runs) else ""
    if not values:
        return MISSING + tally, None
    interval = mean_interval(list(values.values()))
    return percent(interval.mean, shown_half_width(interval)) + tally, interval.mean


def _raw(summary: Summary, metrics: Sequence[Metric]) -> pd.DataFrame:
    rows = []
    for cell in summary.cells():
        for method in summary.methods(cell.setting):
            runs = [run for run in summary.at(cell) if run["method"] == method]
            for metric in metrics:
                row: dict[str, Any] = {
                    **_place(cell, method, metric),
                    "runs": len(runs),
                    "runs ok": sum(run["status"] == "ok" for run in runs),
                }
                for at in summary.rounds:
                    values = summary.values(cell, f"{at}_{metric.key}").get(method, {})
                    row |= _numbers(at, values)
                rows.append(row)
    return pd.DataFrame(rows)


def _place(cell: Cell, method: str, metric: Metric) -> dict[str, Any]:
    """What tells a row of the raw numbers."""
    return {
        "dataset": cell.setting.dataset,
        "clients": cell.setting.clients,
        "skew": cell.skew,
        "method": method,
        "metric": metric.key,
    }


def _raw_name(at: str, name: str) -> str:
    return f"{_RAW_NAMES[at]} {name} (%)"


def _numbers(at: str, values: Mapping[int, float]) -> dict[str, float | None]:
    interval = mean_interval(list(values.values())) if values else None
    parts = {
        "mean": interval.mean if interval else None,
        "half-width of 95 % interval": shown_half_width(interval) if interval else None,
        "standard deviation": interval.std if interval else None,
    }
    return {
        _raw_name(at, name): None if value is None else 100 * value for name, value in parts.items()
    }


def _notes(summary: Summary, metrics: Sequence[Metric], blocks: Sequence[Block]) -> tuple[str, ...]:
    """Why a number is missing or has no interval, what is cut, and what had not settled."""
    places: dict[str, list[str]] = {}
    counts: list[int] = []
    for cell in summary.cells():
        where = summary.cell_name(cell)
        for method in summary.methods(cell.setting):
            runs = [run for run in summary.at(cell) if run["method"] == method]
            counts.append(sum(run["status"] == "ok" for run in runs))
            for reason in reasons(runs, metrics, summary.reported):
                places.setdefault(f"{method_title(method)}: {reason}", []).append(where)
    cells = len(summary.cells())
    missing = tuple(
        f"{note}." if len(where) == cells else f"{note} ({'; '.join(where)})."
        for note, where in places.items()
    )
    cut = any(is_cut(entry.text) for one in blocks for row in one.rows for entry in row[1:])
    return (
        *missing,
        *few_seeds(counts, SHOWN_FROM),
        *((CUT,) if cut else ()),
        *horizon_notes(summary),
    )


def reasons(
    runs: Sequence[Mapping[str, Any]], metrics: Sequence[Metric], reported: str
) -> list[str]:
    """Why numbers of a method's runs are missing, or rest on fewer runs than were asked for."""
    if all(run["status"] == NOT_RUN for run in runs):
        return []  # the cell itself says so
    failed = [run for run in runs if run["status"] not in ("ok", NOT_RUN)]
    reasons = [f"seed {run['seed']} failed with “{_first_line(run['error'])}”" for run in failed]
    if left := [run["seed"] for run in runs if run["status"] == NOT_RUN]:
        reasons.append(f"{NOT_RUN}: seed{'s' * (len(left) > 1)} {ranges(left)}")
    ok = [run for run in runs if run["status"] == "ok"]
    for metric in metrics:
        if ok and all(run.get(f"{reported}_{metric.key}") is None for run in ok):
            private = metric == GLOBAL and all(run["communicated_parameters"] == 0 for run in ok)
            why = (
                "every parameter is private, so there is no global model"
                if private
                else "the runs did not evaluate it"
            )
            reasons.append(f"{MISSING} no {metric.title}: {why}")
    return reasons


def _first_line(error: str | None, length: int = 160) -> str:
    """Enough of an error to recognise it; result.json has the rest."""
    line = (error or "no error was recorded").strip().partition("\n")[0]
    return line if len(line) <= length else f"{line[: length - 1]}…"
