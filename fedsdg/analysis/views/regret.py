"""Regret: how far each row is below the best row of its cell.

The best row of a cell is chosen on half of the seeds and measured on the other half, both ways, so
that no row profits from being chosen by luck. Oracles, which know the groups or have all data in
one place, are never the best, and rows that are equal seed by seed count once.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from statistics import median_low

import numpy as np
import pandas as pd

from fedsdg.analysis.horizon import reported_values
from fedsdg.analysis.inference import holm, mean_interval, paired_difference
from fedsdg.analysis.judge import LEVEL
from fedsdg.analysis.names import EXPECTED, method_order
from fedsdg.analysis.summary import Cell, Summary

#: Method → seed → value.
_Values = Mapping[str, Mapping[int, float]]
_COLUMNS = [
    *("experiment", "dataset", "clients", "skew", "method", "metric"),
    *("n", "regret", "low", "high", "tied", "oracle"),
]


def regret(summary: Summary, cell: Cell, metric: str = EXPECTED.key) -> pd.DataFrame:
    """The regret of every row of a cell.

    Args:
        summary: The runs of an experiment.
        cell: One of its cells.
        metric: The key of a metric.

    Returns:
        A row per method with at least one value: experiment, dataset, clients, skew, method,
        ``metric``, ``n`` (seeds), ``regret``, ``low``, ``high`` (shares of 1; the ends NaN for one
        seed), ``tied`` (cannot be told from the best) and ``oracle``.
    """
    values = summary.reported_values(cell, metric)
    known = oracles(summary, cell)
    tied = _tied(values, known)
    rows = []
    for method, gaps in shortfalls(summary, cell, metric, summary.reported).items():
        interval = mean_interval([*gaps.values()])
        rows.append(
            {
                "experiment": summary.experiment,
                **cell.place,
                "method": method,
                "metric": metric,
                "n": interval.n,
                "regret": interval.mean,
                "low": np.nan if interval.low is None else interval.low,
                "high": np.nan if interval.high is None else interval.high,
                "tied": method not in known and values[method] in tied,
                "oracle": method in known,
            }
        )
    return pd.DataFrame(rows, columns=None if rows else _COLUMNS)


@lru_cache(maxsize=64)
def shortfalls(summary: Summary, cell: Cell, metric: str, at: str) -> dict[str, dict[int, float]]:
    """How far each row is below the best row of a cell, seed by seed.

    Args:
        summary: The runs of an experiment.
        cell: One of its cells.
        metric: The key of a metric.
        at: A reported round, or the quarter before the last (``reported_values``).

    Returns:
        Method → seed → share of 1, of the seeds on which the best row is known; methods without
        such a seed are left out.
    """
    values = reported_values(summary, cell, metric, at)
    if not (distinct := _distinct(values, oracles(summary, cell))):
        return {}
    whole, seeds = _whole(distinct)
    best = best_by_seed(whole, seeds)
    gaps = {
        method: {
            seed: best[seed] - values[method][seed] for seed in seeds if seed in values[method]
        }
        for method in sorted(values, key=method_order)
    }
    return {method: own for method, own in gaps.items() if own}


def oracles(summary: Summary, cell: Cell) -> set[str]:
    """The ceiling of the experiment, and methods that know which clients belong together.

    Args:
        summary: The runs of an experiment.
        cell: One of its cells.
    """
    return {
        run["method"]
        for run in summary.at(cell)
        if summary.roles.is_ceiling(run["method"])
        or json.loads(run["config"] or "{}").get("parameters", {}).get("assignment") == "known"
    }


def _distinct(values: _Values, known: Collection[str]) -> dict[str, Mapping[int, float]]:
    """The rows without oracles; of those that are equal seed by seed the first."""
    first: dict[frozenset[tuple[int, float]], str] = {}
    for method in sorted(values.keys() - known, key=method_order):
        first.setdefault(frozenset(values[method].items()), method)
    return {method: values[method] for method in first.values()}


def _whole(distinct: _Values) -> tuple[_Values, list[int]]:
    """The rows that the best is chosen from, and the seeds that all of them have.

    A row that has fewer seeds than others is compared, and is not chosen. More seeds than others do
    not make a row the only one to choose from.
    """
    usual = median_low(len(own) for own in distinct.values())
    whole = {method: own for method, own in distinct.items() if len(own) >= usual}
    return whole, sorted(set.intersection(*map(set, whole.values())))


def best_by_seed(
    values: Mapping[str, Mapping[int, float]], seeds: Sequence[int]
) -> dict[int, float]:
    """Seed → the value there of the row that is best on the other half of the seeds.

    Args:
        values: Method → seed → value, with a value for each of ``seeds``.
        seeds: The seeds, which are halved in this order; with a single seed the best row is chosen
            on that seed itself.
    """
    halves = (seeds[: len(seeds) // 2], seeds[len(seeds) // 2 :])
    best: dict[int, float] = {}
    for mine, other in (halves, halves[::-1]):
        chosen_on = other or mine
        top = max(values, key=lambda method: sum(values[method][seed] for seed in chosen_on))
        best |= {seed: values[top][seed] for seed in mine}
    return best


def _tied(values: _Values, known: Collection[str]) -> list[Mapping[int, float]]:
    """The values of rows that a test does not put below the one with the highest mean."""
    if not (distinct := _distinct(values, known)):
        return []
    whole, seeds = _whole(distinct)
    top = max(whole, key=lambda method: sum(whole[method][seed] for seed in seeds))
    others = [method for method in distinct if method != top]
    p = []
    for method in others:
        paired = paired_difference(distinct[top], distinct[method])
        p.append(None if paired is None or paired.p is None else paired.interval.p_above(0.0))
    adjusted = zip(others, holm(p), strict=True)
    tied = [top, *(method for method, one in adjusted if one is None or one >= LEVEL)]
    return [distinct[method] for method in tied]


def regrets(summaries: Sequence[Summary], metric: str = EXPECTED.key) -> pd.DataFrame:
    """The regret of every row in every cell of these experiments; see ``regret``.

    Args:
        summaries: The runs of each experiment, at least one.
        metric: The key of a metric.

    Returns:
        The rows of ``regret``, one cell after another.

    Raises:
        ValueError: No cell has the metric.
    """
    parts = [regret(summary, cell, metric) for summary in summaries for cell in summary.cells()]
    rows = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    if rows.empty:
        names = ", ".join(summary.experiment for summary in summaries)
        raise ValueError(f"no cell of {names} has a value of {metric!r}")
    return rows
