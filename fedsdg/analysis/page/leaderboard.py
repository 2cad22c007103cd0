"""The leaderboard of an arena: a row for each method, a number with its interval in each column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from fedsdg.analysis.formatting import MISSING, amount, percent, printed
from fedsdg.analysis.horizon import STEADY, horizon_of
from fedsdg.analysis.hyperparameters import ranges, settings
from fedsdg.analysis.inference import mean_interval, shown_half_width
from fedsdg.analysis.names import (
    OWN,
    OWN_WORST,
    Metric,
    method_title,
)
from fedsdg.analysis.page.arenas import Arena, family
from fedsdg.analysis.summary import Roles, Summary
from fedsdg.analysis.tables.accuracy import reasons
from fedsdg.analysis.tables.layout import Entry, mark_best

#: Costs: column, heading, what it is, and how many of the counted are one in print.
COSTS = (
    ("bytes", "MB", "megabytes sent in a whole run, up and down", 1e6),
    ("steps", "k steps", "thousands of local steps of all clients in a whole run", 1e3),
)


@dataclass(frozen=True)
class Number:
    """A number of the table: its text, the value to sort by, and why there is none."""

    column: str
    text: str
    value: float | None
    best: bool = False
    why: str = ""


@dataclass(frozen=True)
class Row:
    """A method's row; ``ok`` are the runs that went well, ``tally`` says of how many."""

    method: str
    title: str
    family: str
    ok: int
    tally: str
    numbers: tuple[Number, ...]
    steady: bool
    horizon: str


@dataclass(frozen=True)
class Board:
    """What the table of an arena shows; the rows by their headline, the highest first."""

    arena: Arena
    heads: tuple[tuple[str, str, str], ...]  # column, heading, what it is
    rows: tuple[Row, ...]
    reported: str
    common: tuple[tuple[str, str], ...]  # what all runs have in common: symbol, value
    own: tuple[tuple[str, tuple[str, ...]], ...]  # a method's title, and its values of ``symbols``
    symbols: tuple[str, ...]


def metrics_of(summary: Summary) -> list[Metric]:
    """The columns of accuracy: the headline first, and nothing twice."""
    return [m for m in summary.metrics if m not in (OWN, OWN_WORST)]


def steps_of(summary: Summary) -> dict[tuple[Any, ...], float]:
    """Local steps of all clients in a whole run, by data set, clients, skew, method and seed."""
    keys = ["dataset", "clients", "skew", "method", "seed"]
    frame = summary.frame("rounds", keys, ["local_steps"])
    known: pd.DataFrame = frame[frame["local_steps"].notna()]
    sums = known.groupby(keys)["local_steps"].sum()
    return {tuple(key): float(total) for key, total in zip(sums.index, sums, strict=True)}


def values_of(arena: Arena, steps: Mapping[tuple[Any, ...], float]) -> dict[str, dict[str, Any]]:
    """What each method reached and cost, seed by seed.

    Args:
        arena: The cell.
        steps: ``steps_of`` its summary.

    Returns:
        Method → column → its values by seed: shares of 1, bytes, steps; six digits of each.
        ``seeds`` are those of the runs that went well; None stands where a run has no such number.
    """
    setting, found = arena.cell.setting, {}
    for method in arena.methods:
        runs = arena.runs(method)
        columns: dict[str, Any] = {"seeds": [run["seed"] for run in runs]}
        for metric in metrics_of(arena.summary):
            columns[metric.key] = [run[f"{arena.summary.reported}_{metric.key}"] for run in runs]
        columns["bytes"] = [_both_ways(run) for run in runs]
        place = (setting.dataset, setting.clients, arena.cell.skew, method)
        columns["steps"] = [steps.get((*place, run["seed"])) for run in runs]
        found[method] = {name: list(map(_rounded, values)) for name, values in columns.items()}
    return found


def _both_ways(run: Mapping[str, Any]) -> float | None:
    ways = [run["bytes_up"], run["bytes_down"]]
    return None if None in ways else sum(ways)


def _rounded(value: float | None) -> float | None:
    return value if value is None or isinstance(value, int) else printed(value)


def board(arena: Arena, values: Mapping[str, Mapping[str, Any]]) -> Board:
    """The table of an arena.

    Args:
        arena: The cell.
        values: ``values_of`` it.
    """
    summary, metrics = arena.summary, metrics_of(arena.summary)
    columns = [
        [_accuracy(arena, method, metric, values[method][metric.key]) for method in arena.methods]
        for metric in metrics
    ]
    for name, _, _, unit in COSTS:
        columns.append([_cost(name, unit, values[method][name]) for method in arena.methods])
    marked = [_best(column, arena.methods, summary.roles) for column in columns[: len(metrics)]]
    marked += columns[len(metrics) :]
    rows = []
    for i, method in enumerate(arena.methods):
        runs = [run for run in summary.at(arena.cell) if run["method"] == method]
        ok, word = len(values[method]["seeds"]), horizon_of(summary, arena.cell, method)
        rows.append(
            Row(
                method,
                method_title(method),
                family(method),
                ok,
                str(ok) if ok == len(runs) else f"{ok} of {len(runs)}",
                tuple(column[i] for column in marked),
                word == STEADY,
                word or MISSING,
            )
        )
    rows.sort(key=lambda row: -_of(row.numbers[0], float("-inf")))
    # Of a definition "Name (%): what it is" the second half.
    meant = {metric: metric.definition.partition(": ")[2] for metric in metrics}
    heads = [(metric.key, metric.short, meant[metric] or metric.title) for metric in metrics]
    heads += [(name, heading, what) for name, heading, what, _ in COSTS]
    common, own = settings(summary.at(arena.cell))
    symbols = tuple(dict.fromkeys(symbol for said in own.values() for symbol in said))
    seeds = sorted({run["seed"] for method in arena.methods for run in arena.runs(method)})
    backbones = sorted({r["backbone_hash"][:8] for r in summary.runs if r["backbone_hash"]})
    common |= {"seeds": ranges(seeds), "backbone": ", ".join(backbones)}
    return Board(
        arena,
        tuple(heads),
        tuple(rows),
        summary.rounds[summary.reported],
        tuple((symbol, text) for symbol, text in common.items() if text),
        tuple(
            (method_title(method), tuple(own[method].get(symbol, MISSING) for symbol in symbols))
            for method in arena.methods
            if own.get(method)
        ),
        symbols,
    )


def _of(number: Number, missing: float) -> float:
    return missing if number.value is None else number.value


def _accuracy(arena: Arena, method: str, metric: Metric, by_seed: list[float | None]) -> Number:
    known = [value for value in by_seed if value is not None]
    if not known:
        runs = [run for run in arena.summary.at(arena.cell) if run["method"] == method]
        why = "; ".join(reasons(runs, [metric], arena.summary.reported))
        return Number(metric.key, MISSING, None, why=why)
    interval = mean_interval(known)
    return Number(metric.key, percent(interval.mean, shown_half_width(interval)), interval.mean)


def _cost(name: str, unit: float, by_seed: list[float | None]) -> Number:
    known = [value for value in by_seed if value is not None]
    if not known:
        return Number(name, MISSING, None, why="the runs did not record it")
    mean = sum(known) / len(known)
    return Number(name, amount(mean, unit), mean)


def _best(column: list[Number], methods: Sequence[str], who: Roles) -> list[Number]:
    """The column with its highest number marked; a ceiling takes no part in that."""
    ranked = [
        None if who.is_ceiling(method) else number.value
        for number, method in zip(column, methods, strict=True)
    ]
    marked = mark_best([Entry(number.text) for number in column], ranked)
    return [replace(number, best=entry.bold) for number, entry in zip(column, marked, strict=True)]
