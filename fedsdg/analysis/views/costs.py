"""Accuracy against its costs: rounds, steps, bytes and seconds; what targets and runs take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedsdg.analysis.frames import (
    CASE,
    MEAN,
    ROW,
    RUN,
    finished,
    groups,
    over_seeds,
    split_scenario,
)
from fedsdg.analysis.names import DIFFERING, GLOBAL, Metric
from fedsdg.analysis.summary import Summary

#: Costs that accuracy is shown against: column, title of its axis, and unit of the axis.
COSTS = (
    ("round", "round", 1.0),
    ("steps", "local steps of all clients (thousands)", 1e3),
    ("bytes", "MB sent and received", 1e6),
)
#: The yardstick of the targets, and the shares of its reported accuracy that they are.
YARDSTICK, SHARES = "fedavg-uniform", (0.90, 0.95, 0.99)
#: Evaluations that a smoothed value is the mean of: this one and those before it.
SMOOTHED = 3
#: Counts of uploads and of clients, and idle time: columns of a round.
COUNTS = ["idle_seconds", "arrived", "late", "discarded", "passed_over", "dropped"]
#: Clients without time for an update: a column only of the rounds that have any.
LACKING = "out_of_time"

#: Costs of whole runs are compared over all skews of a data set.
_METHOD = ["dataset", "clients", "method"]
_PHASES = ["train_seconds", "aggregate_seconds", "evaluate_seconds"]


def progress(summary: Summary, metric: Metric | None = None) -> pd.DataFrame:
    """Accuracy at each evaluation, and what it took until then: means over the same seeds.

    Args:
        summary: The experiment.
        metric: Which accuracy; the headline (``Summary.personal``) without one.

    Returns:
        ``CASE``, metric, round, n, mean, low, high, and the cumulative costs of ``evaluations``.
    """
    metric = metric or summary.personal
    frame = evaluations(summary, metric)
    by = [*CASE, "round"]
    costs = [name for name in ("steps", "bytes", "personal_steps") if name in frame]
    means = frame.groupby(by, as_index=False)[costs].mean()
    rows = over_seeds(frame, by, metric.key).merge(means, how="left", on=by)
    return rows.assign(metric=metric.key)[[*CASE, "metric", "round", *MEAN, *costs]]


def accuracy_by_round(summary: Summary) -> pd.DataFrame:
    """Personal and global accuracy at each evaluation: ``CASE``, metric, round and ``MEAN``."""
    parts = [progress(summary, metric) for metric in (summary.personal, GLOBAL)]
    return pd.concat(
        [part[[*CASE, "metric", "round", *MEAN]] for part in parts if len(part)]
        or [pd.DataFrame(columns=[*CASE, "metric", "round", *MEAN])],
        ignore_index=True,
    )


def accuracy_of_differing(summary: Summary) -> pd.DataFrame:
    """Accuracy by round of the clients that differ (B); of all clients if they are of one kind.

    Returns:
        ``CASE``, metric, round and ``MEAN``.
    """
    metric = DIFFERING if DIFFERING in summary.metrics else summary.personal
    return progress(summary, metric)[[*CASE, "metric", "round", *MEAN]]


def evaluations(summary: Summary, metric: Metric | None = None) -> pd.DataFrame:
    """Accuracy of each run at each evaluation, by round, and what it took until then.

    Args:
        summary: The experiment.
        metric: Which accuracy; the headline without one.

    Returns:
        ``CASE``, seed, round, evaluated, the key of the accuracy, and the cumulative ``steps``
        (local steps of all clients together) and ``bytes`` (up and down). Where the record has
        them, ``personal_steps`` are those for what clients keep, with the fine-tuning before each
        evaluation, which ``steps`` do not count.
    """
    metric = metric or summary.personal
    counted = ["local_steps", "bytes_up", "bytes_down"]
    frame = summary.frame(
        "rounds",
        [*CASE, "seed", "round", "evaluated", *counted],
        optional=[metric.key, "personal_steps"],
    ).sort_values("round", kind="stable")
    total = frame.groupby([*CASE, "seed"], sort=False)[[*counted, "personal_steps"]].cumsum()
    frame = frame.assign(
        steps=total["local_steps"].astype(float),
        bytes=total["bytes_up"].astype(float) + total["bytes_down"],
        personal_steps=total["personal_steps"],
    )
    if frame["personal_steps"].isna().all():
        frame = frame.drop(columns="personal_steps")
    return frame[frame["evaluated"].astype(bool)].dropna(subset=[metric.key])


def rounds_to_target(summary: Summary) -> pd.DataFrame:
    """Return the cost of reaching each target accuracy, per cell, method and target.

    The targets are ``SHARES`` of the reported personal accuracy of ``YARDSTICK`` in that cell;
    cells without it have none. A method is there at its first evaluation at which the mean over
    seeds, smoothed over ``SMOOTHED`` evaluations, is at least the target.

    Returns:
        ``CASE``, share, target, and the round and costs of ``evaluations``, NaN for never.
    """
    curves = progress(summary)
    costs = [name for name in ("round", "steps", "bytes", "personal_steps") if name in curves]
    rows = []
    for cell in summary.cells():
        here = curves[cell.matches(curves)]
        final = summary.reported_values(cell, summary.personal.key).get(YARDSTICK)
        if here.empty or not final:
            continue
        yardstick = float(np.mean(list(final.values())))
        for share in SHARES:
            for key, line in groups(here, *CASE):
                ordered = line.sort_values("round")
                there = ordered[smoothed(ordered["mean"]) >= share * yardstick]
                rows.append(
                    dict(zip(CASE, key, strict=True))
                    | {"share": share, "target": share * yardstick}
                    | {name: there[name].iloc[0] if len(there) else np.nan for name in costs}
                )
    frame = pd.DataFrame(rows, columns=[*CASE, "share", "target", *costs])
    return frame.astype(dict.fromkeys(costs, float))


def smoothed(values: Sequence[float] | pd.Series) -> np.ndarray:
    """Mean of each value and the ``SMOOTHED`` − 1 before it; of fewer at the beginning."""
    return pd.Series(np.asarray(values)).rolling(SMOOTHED, min_periods=1).mean().to_numpy()


def accuracy_over_time(summary: Summary) -> pd.DataFrame:
    """Mean accuracy at each simulated second: personal (the headline) and global.

    A run has the accuracy of its last evaluation until the next, and to the end of the longest run
    of its line. The mean is taken from where every seed has been evaluated, at the times at which
    any of them was.

    Returns:
        ``ROW``, metric, seconds, n, mean.
    """
    metrics = [summary.personal.key, GLOBAL.key]
    frame = summary.frame("rounds", [*CASE, "seed", "evaluated"], ["simulated_seconds", *metrics])
    frame = frame[frame["evaluated"].astype(bool) & frame["simulated_seconds"].notna()]
    columns = [*ROW, "metric", "seconds", "n", "mean"]
    parts = []
    for key, runs in groups(split_scenario(frame), *ROW):
        for metric in metrics:
            # A column for each seed, which keeps its accuracy until its next evaluation.
            curves = runs.pivot_table(metric, "simulated_seconds", "seed", aggfunc="last").ffill()
            means = curves.dropna().mean(axis=1).rename("mean").rename_axis("seconds")
            names = dict(zip(ROW, key, strict=True)) | {"metric": metric, "n": curves.shape[1]}
            parts.append(means.reset_index().assign(**names))
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def costs_of_waiting(summary: Summary) -> pd.DataFrame:
    """The clock and the counts of whole runs: means over seeds.

    Returns:
        ``ROW``, personal (the headline) and global accuracy, ``COUNTS`` summed over the rounds,
        ``simulated_seconds``, ``LACKING`` where any run counted such clients, the
        ``discarded_share`` of all uploads, and ``n``.
    """
    identity = [*CASE, "seed"]
    frame = summary.frame("rounds", identity, ["simulated_seconds", *COUNTS, LACKING])
    frame = split_scenario(frame[frame["simulated_seconds"].notna()])
    runs = frame.groupby(RUN, sort=False)
    totals = runs[COUNTS].sum(min_count=1).join(runs["simulated_seconds"].max())
    if frame[LACKING].notna().any():
        totals[LACKING] = runs[LACKING].sum()
    # Every upload arrives in time, arrives late and is used, or is discarded in the end.
    uploads = totals[["arrived", "discarded"]].sum(axis=1, min_count=1)
    totals["discarded_share"] = totals["discarded"] / uploads.where(uploads > 0)
    accuracies = finished(summary)[[*RUN, summary.personal.key, GLOBAL.key]]
    per_run = accuracies.merge(totals.reset_index(), on=RUN)
    lines = per_run.groupby(ROW, sort=False)
    return lines[[n for n in per_run if n not in RUN]].mean().assign(n=lines.size()).reset_index()


def traffic(summary: Summary) -> pd.DataFrame:
    """Return the bytes and parameters that a method sends and keeps, and the data it discloses.

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
    """The rows of every method of every setting, without numbers if no run is ok."""
    keys = [
        (setting.dataset, setting.clients, method)
        for setting in summary.settings()
        for method in summary.methods(setting)
    ]
    return means.reindex(pd.MultiIndex.from_tuples(keys, names=_METHOD)).reset_index()
