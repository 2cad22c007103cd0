"""Accuracy by method and skew: one metric at two reported rounds, and the README's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedsdg.analysis.formatting import MISSING, percent
from fedsdg.analysis.hyperparameters import hyperparameters, ranges
from fedsdg.analysis.names import (
    GLOBAL,
    METRICS,
    NOT_RUN,
    PERSONAL,
    ROUNDS,
    WORST,
    Metric,
    is_ceiling,
    method_title,
    skew_title,
)
from fedsdg.analysis.statistics import mean_interval
from fedsdg.analysis.summary import Cell, Setting, Summary
from fedsdg.analysis.tables.layout import Block, Entry, Table, mark_best

_DEFINITIONS = {
    PERSONAL.key: "Personal accuracy (%): every client on its own test data with its own model, "
    "mean over clients",
    WORST.key: "Worst-decile accuracy (%): mean personal accuracy of the ⌈K/10⌉ clients it is "
    "lowest for",
    GLOBAL.key: "Global accuracy (%): the shared parameters alone on the global test set",
}
_INTERVAL = (
    "mean ± half-width of the 95 % Student-t interval over seeds; bold: highest mean of a column"
)


def personal_accuracy(summary: Summary) -> Table:
    """Mean over clients of the accuracy on their own test data."""
    return _by_skew(summary, "personal_accuracy", PERSONAL)


def worst_decile(summary: Summary) -> Table:
    """Mean accuracy of the ⌈K/10⌉ worst clients."""
    return _by_skew(summary, "worst_decile", WORST)


def global_accuracy(summary: Summary) -> Table:
    """Accuracy of the shared parameters alone on the global test set."""
    return _by_skew(summary, "global_accuracy", GLOBAL)


def main(summary: Summary) -> Table:
    """Personal, worst-decile and global accuracy at every skew, last round, one row per method."""
    caption = (
        "Personal, worst-decile and global accuracy (%) in the last round: "
        f"{_INTERVAL}. {hyperparameters(summary.runs)}"
    )
    blocks = []
    for setting in summary.settings():
        columns = [
            (Cell(setting, skew), metric, "last", skew_title(skew), metric.short)
            for skew in summary.skews(setting)
            for metric in METRICS
        ]
        blocks.append(_block(summary, setting, columns, setting.title))
    return Table("main", caption, tuple(blocks), _notes(summary, METRICS), _raw(summary, METRICS))


def _by_skew(summary: Summary, name: str, metric: Metric) -> Table:
    caption = f"{_DEFINITIONS[metric.key]}; {_INTERVAL}. {hyperparameters(summary.runs)}"
    blocks = []
    for setting in summary.settings():
        for at, round_title in ROUNDS.items():
            columns = [
                (Cell(setting, skew), metric, at, "", skew_title(skew))
                for skew in summary.skews(setting)
            ]
            blocks.append(_block(summary, setting, columns, f"{setting.title}, {round_title}"))
    return Table(name, caption, tuple(blocks), _notes(summary, [metric]), _raw(summary, [metric]))


def _block(
    summary: Summary,
    setting: Setting,
    columns: Sequence[tuple[Cell, Metric, str, str, str]],
    title: str,
) -> Block:
    methods = summary.methods(setting)
    filled = mark_best(
        [
            [_ranked(method, _entry(summary, cell, metric, at, method)) for method in methods]
            for cell, metric, at, _, _ in columns
        ]
    )
    rows = [
        (Entry(method_title(method)), *(column[i] for column in filled))
        for i, method in enumerate(methods)
    ]
    heads = [("", "Method"), *((group, heading) for _, _, _, group, heading in columns)]
    return Block(title, tuple(heads), tuple(rows))


def _ranked(method: str, entry: tuple[str, float | None]) -> tuple[str, float | None]:
    """The ceiling stands in the table without being the best of it."""
    text, value = entry
    return text, None if is_ceiling(method) else value


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
    return percent(interval.mean, interval.half_width) + tally, interval.mean


def _raw(summary: Summary, metrics: Sequence[Metric]) -> pd.DataFrame:
    rows = []
    for cell in summary.cells():
        for method in summary.methods(cell.setting):
            runs = [run for run in summary.at(cell) if run["method"] == method]
            for metric in metrics:
                row: dict[str, Any] = {
                    "dataset": cell.setting.dataset,
                    "clients": cell.setting.clients,
                    "skew": cell.skew,
                    "method": method,
                    "metric": metric.key,
                    "runs": len(runs),
                    "runs ok": sum(run["status"] == "ok" for run in runs),
                }
                for at in ROUNDS:
                    values = summary.values(cell, f"{at}_{metric.key}").get(method, {})
                    row |= _numbers(at, values)
                rows.append(row)
    return pd.DataFrame(rows)


def _numbers(at: str, values: Mapping[int, float]) -> dict[str, float | None]:
    interval = mean_interval(list(values.values())) if values else None
    parts = {
        "mean": interval.mean if interval else None,
        "half-width of 95 % interval": interval.half_width if interval else None,
        "standard deviation": interval.std if interval else None,
    }
    return {
        f"{at} round {name} (%)": None if value is None else 100 * value
        for name, value in parts.items()
    }


def _notes(summary: Summary, metrics: Sequence[Metric]) -> tuple[str, ...]:
    """Why a number is missing or rests on fewer seeds: one note per method and reason."""
    places: dict[str, list[str]] = {}
    several = len(summary.settings()) > 1
    for cell in summary.cells():
        where = skew_title(cell.skew, short=True)
        where = f"{cell.setting.title}, {where}" if several else where
        for method in summary.methods(cell.setting):
            runs = [run for run in summary.at(cell) if run["method"] == method]
            for reason in _reasons(runs, metrics):
                places.setdefault(f"{method_title(method)}: {reason}", []).append(where)
    cells = len(summary.cells())
    return tuple(
        f"{note}." if len(where) == cells else f"{note} ({'; '.join(where)})."
        for note, where in places.items()
    )


def _reasons(runs: Sequence[Mapping[str, Any]], metrics: Sequence[Metric]) -> list[str]:
    if all(run["status"] == NOT_RUN for run in runs):
        return []  # the cell itself says so
    failed = [run for run in runs if run["status"] not in ("ok", NOT_RUN)]
    reasons = [f"seed {run['seed']} failed with “{_first_line(run['error'])}”" for run in failed]
    if left := [run["seed"] for run in runs if run["status"] == NOT_RUN]:
        reasons.append(f"{NOT_RUN}: seed{'s' * (len(left) > 1)} {ranges(left)}")
    ok = [run for run in runs if run["status"] == "ok"]
    for metric in metrics:
        if ok and all(run[f"last_{metric.key}"] is None for run in ok):
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
