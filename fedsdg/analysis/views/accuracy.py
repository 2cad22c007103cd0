"""Accuracy of every method, means over seeds, and what a whole run costs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pandas as pd

from fedsdg.analysis.frames import CASE, MEAN, PLACE, over_seeds, split_scenario
from fedsdg.analysis.names import AGREEING, DIFFERING, NOT_RUN, Metric
from fedsdg.analysis.summary import Summary

#: Cost is compared over all skews of a data set.
_METHOD = ["dataset", "clients", "method"]
_PHASES = ["train_seconds", "aggregate_seconds", "evaluate_seconds"]


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
            (cell.setting.dataset, cell.setting.clients, cell.skew, method, key, at)
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
    """The runs that went well, with these columns also where no run has them."""
    return runs.loc[runs["ok"]].reindex(columns=[*CASE, *columns])


def headlines(summary: Summary) -> pd.DataFrame:
    """The reported personal, worst-decile and global accuracy: see ``reported_accuracy``."""
    return reported_accuracy(summary, summary.headlines)


def group_accuracy(summary: Summary) -> pd.DataFrame:
    """The reported accuracy of clients that agree (A) and that differ (B), if there are such."""
    return reported_accuracy(summary, (AGREEING, DIFFERING))


def reported_accuracy(summary: Summary, metrics: Sequence[Metric]) -> pd.DataFrame:
    """Rows by metric, ``PLACE``, scenario and method with ``n``, ``mean``, ``low``, ``high``."""
    rows = accuracy(summary, metrics, [summary.reported])
    rows = split_scenario(rows[rows["n"] > 0])
    order = [metric.key for metric in metrics]
    rows = rows.sort_values("metric", key=lambda keys: keys.map(order.index), kind="stable")
    return rows[[*PLACE, "scenario", "method", "metric", *MEAN]].reset_index(drop=True)


def traffic(summary: Summary) -> pd.DataFrame:
    """What a method sends, keeps and trains, and the data it discloses.

    Returns:
        A row for each data set, number of clients and method: ``runs ok``, means over those runs
        with their units in the columns' names, and, where any method gives data away, the share
        that a client gives as ``data disclosed``.
    """
    runs = pd.DataFrame(summary.runs)
    ok = runs[runs["status"] == "ok"]
    rounds = ok["rounds"].astype(float)
    numbers = {
        "bytes up per round (bytes)": ok["bytes_up"] / rounds,
        "bytes down per round (bytes)": ok["bytes_down"] / rounds,
        "bytes up per run (bytes)": ok["bytes_up"],
        "bytes down per run (bytes)": ok["bytes_down"],
        "client storage (bytes)": ok["client_storage_bytes"],
        "communicated parameters": ok["communicated_parameters"],
        "private parameters": ok["private_parameters"],
    }
    numbers = {name: values.astype(float) for name, values in numbers.items()}
    by_method = ok[_METHOD].assign(**numbers).groupby(_METHOD)
    means = by_method.mean()
    means.insert(0, "runs ok", by_method.size())
    rows = _of_all_methods(summary, means)
    rows["runs ok"] = rows["runs ok"].fillna(0).astype(int)
    run = [*CASE, "seed", "client"]
    # A client discloses its data once, however many rounds it has a row for.
    clients = summary.frame("clients", run, ["disclosed"]).dropna().drop_duplicates(run)
    disclosed = clients.groupby(_METHOD)["disclosed"].mean().astype(float).rename("data disclosed")
    return rows if disclosed.empty else rows.join(disclosed, on=_METHOD)


def seconds(summary: Summary) -> pd.DataFrame:
    """Seconds of a round by phase and of a run, and peak memory; differs between machines.

    Returns:
        A row for each data set, number of clients and method: means over the runs that are ok, with
        their units in the columns' names.
    """
    runs = pd.DataFrame(summary.runs)
    run = [*CASE, "seed"]
    wanted = [*_PHASES, "wall_seconds", "peak_rss_mb"]
    per_run = summary.frame("timings").groupby(run, as_index=False)[wanted].mean()
    per_run = per_run.merge(runs.loc[runs["status"] == "ok", run])
    by_method = per_run.groupby(_METHOD)
    means = by_method[wanted].mean()
    means.insert(len(_PHASES) + 1, "std", by_method["wall_seconds"].std())
    titles = {name: f"{name.removesuffix('_seconds')} per round (s)" for name in _PHASES} | {
        "wall_seconds": "wall time per run (s)",
        "std": "standard deviation of wall time (s)",
        "peak_rss_mb": "peak memory (MB)",
    }
    return _of_all_methods(summary, means.rename(columns=titles))


def _of_all_methods(summary: Summary, means: pd.DataFrame) -> pd.DataFrame:
    """The rows of every method of every setting, without numbers where no run went well."""
    keys = [
        (setting.dataset, setting.clients, method)
        for setting in summary.settings()
        for method in summary.methods(setting)
    ]
    return means.reindex(pd.MultiIndex.from_tuples(keys, names=_METHOD)).reset_index()
