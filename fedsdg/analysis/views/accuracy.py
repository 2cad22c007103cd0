"""Accuracy of every method: means over seeds with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pandas as pd

from fedsdg.analysis.frames import CASE, MEAN, PLACE, ROW, in_order, over_seeds, split_scenario
from fedsdg.analysis.names import (
    AGREEING,
    DIFFERING,
    EXPECTED,
    EXPECTED_WORST,
    GLOBAL,
    NOT_RUN,
    PERSONAL,
    WORST,
    Metric,
    dirichlet_alpha,
)
from fedsdg.analysis.summary import Summary


def accuracy(summary: Summary, metrics: Sequence[Metric], reported: Sequence[str]) -> pd.DataFrame:
    """Accuracy for each cell, method, metric and reported round, also where nothing was run.

    Args:
        summary: The experiment.
        metrics: Which metrics, in the order of the rows of a method.
        reported: Which of ``Summary.rounds``.

    Returns:
        ``CASE``, ``metric``, ``at``; the number of ``runs``, how many of them were ``started`` and
        are ``ok``; ``n`` seeds with a value, their ``mean``, ``low``, ``high``, ``std`` and
        ``half``. Shares of 1, NaN where there is no value.
    """
    runs = pd.DataFrame(summary.runs)
    status = runs["status"]
    runs = runs.assign(started=status != NOT_RUN, ok=status == "ok")
    counts = runs.groupby(CASE)[["started", "ok"]].sum().assign(runs=runs.groupby(CASE).size())
    means = [
        over_seeds(_ok(runs, f"{at}_{metric.key}"), CASE, f"{at}_{metric.key}", spread=True).assign(
            metric=metric.key, at=at
        )
        for metric, at in product(metrics, reported)
    ]
    keys = [metric.key for metric in metrics]
    rows = pd.DataFrame(
        [
            (*cell.place.values(), method, key, at)
            for cell in summary.cells()
            for method in summary.methods(cell.setting)
            for key in keys
            for at in reported
        ],
        columns=[*CASE, "metric", "at"],
    )
    rows = rows.merge(counts.reset_index(), how="left", on=CASE)
    rows = rows.merge(pd.concat(means), how="left", on=[*CASE, "metric", "at"])
    whole = ["runs", "started", "ok", "n"]
    return rows.assign(**{name: rows[name].fillna(0).astype(int) for name in whole})


def _ok(runs: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """The runs that are ok, with these columns even if no run has them."""
    return runs.loc[runs["ok"]].reindex(columns=[*CASE, *columns])


def headlines(summary: Summary) -> pd.DataFrame:
    """The reported personal, worst-decile and global accuracy: see ``reported_accuracy``."""
    return reported_accuracy(summary, summary.headlines)


def group_accuracy(summary: Summary) -> pd.DataFrame:
    """The reported accuracy of clients that agree (A) and that differ (B), if there are such.

    Returns:
        The columns of ``reported_accuracy``, and ``note``: that all clients are of one kind.
    """
    rows = reported_accuracy(summary, (AGREEING, DIFFERING))
    kinds = rows.groupby([*PLACE, "scenario"])["metric"].transform(lambda keys: "".join({*keys}))
    notes = {AGREEING.key: "all clients agree", DIFFERING.key: "all clients differ"}
    return rows.assign(note=[notes.get(kind, "") for kind in kinds])


def by_alpha(summary: Summary) -> pd.DataFrame:
    """The reported personal and global accuracy under each Dirichlet skew, with its ``alpha``."""
    rows = reported_accuracy(summary, (summary.personal, GLOBAL))
    alphas = rows["skew"].map(dirichlet_alpha).astype(float)
    rows = rows.assign(alpha=alphas)[alphas.notna() & (rows["scenario"] == "")]
    return rows.sort_values("alpha", ascending=False, kind="stable").reset_index(drop=True)


def leads(summary: Summary) -> pd.DataFrame:
    """The subject minus each other method at the reported round, paired by seed.

    The metrics are those in which clients are judged on what each expects; without that, those of
    their own shards.

    Returns:
        dataset, clients, skew, metric, subject, rival, n, mean, low, high.
    """
    rows = pd.DataFrame(summary.rows("differences"))
    columns = [*PLACE, "metric", "subject", "rival", *MEAN]
    if rows.empty:
        return pd.DataFrame(columns=columns)
    judged: tuple[Metric, ...] = (EXPECTED, AGREEING, DIFFERING, EXPECTED_WORST, GLOBAL)
    if EXPECTED.key not in set(rows["metric"]):
        judged = (PERSONAL, WORST, GLOBAL)
    rows = rows[rows["at"] == summary.reported]
    return in_order(rows, "metric", [metric.key for metric in judged])[columns]


def reported_accuracy(summary: Summary, metrics: Sequence[Metric]) -> pd.DataFrame:
    """Return the reported values of some metrics, without rows that have none.

    Args:
        summary: The experiment.
        metrics: The metrics, in the order of the rows.

    Returns:
        ``ROW``, metric, n, mean, low, high.
    """
    rows = accuracy(summary, metrics, [summary.reported])
    rows = split_scenario(rows[rows["n"] > 0])
    rows = in_order(rows, "metric", [metric.key for metric in metrics])
    return rows[[*ROW, "metric", *MEAN]]
