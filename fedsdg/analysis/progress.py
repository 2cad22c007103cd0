"""Accuracy against what it costs: rounds, local steps and bytes, and what a target takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedsdg.analysis.frames import groups
from fedsdg.analysis.inference import mean_interval
from fedsdg.analysis.names import Metric
from fedsdg.analysis.summary import Summary

_CELL = ["dataset", "clients", "skew"]
#: What accuracy is shown against: column, its axis, and how many of the column are one there.
COSTS = (
    ("round", "round", 1.0),
    ("steps", "local steps of all clients (thousands)", 1e3),
    ("bytes", "MB sent and received", 1e6),
)
_COUNTED = ("local_steps", "bytes_up", "bytes_down")
#: The yardstick of the targets, and the shares of its reported accuracy that they are.
YARDSTICK, SHARES = "fedavg-uniform", (0.90, 0.95, 0.99)
#: Evaluations that a smoothed value is the mean of: this one and those before it.
SMOOTHED = 3


def progress(summary: Summary, metric: Metric | None = None) -> pd.DataFrame:
    """Rows per cell, method and evaluation: means over the seeds that were evaluated there.

    Columns: dataset, clients, skew, method, metric, round, n, mean, low, high (95 % Student-t,
    the mean itself where one seed allows none), and the cumulative ``steps`` (local steps of all
    clients together) and ``bytes`` (up and down) until then, means over the same seeds. Accuracy
    is the personal one where no ``metric`` is given: as clients expect it where that was recorded,
    else on their own shards.
    """
    metric = metric or summary.personal
    frame = evaluations(summary, metric)
    rows: list[dict[str, Any]] = []
    by = [*_CELL, "method", "round"]
    for key, group in groups(frame, *by):
        interval = mean_interval(group[metric.key].to_numpy(dtype=float))
        half = interval.half_width or 0.0
        rows.append(
            dict(zip(by, key, strict=True))
            | {"metric": metric.key, "n": interval.n, "mean": interval.mean}
            | {"low": interval.mean - half, "high": interval.mean + half}
            | {"steps": group["steps"].mean(), "bytes": group["bytes"].mean()}
        )
    columns = [*_CELL, "method", "metric", "round", "n", "mean", "low", "high", "steps", "bytes"]
    return pd.DataFrame(rows, columns=columns)


def evaluations(summary: Summary, metric: Metric | None = None) -> pd.DataFrame:
    """Rows per run and evaluation, by round: the accuracy, and what it took until then.

    Columns: dataset, clients, skew, method, seed, round, evaluated, the key of the accuracy, and
    the cumulative ``steps`` (local steps of all clients together) and ``bytes`` (up and down).
    """
    metric = metric or summary.personal
    frame = summary.frame(
        "rounds",
        [*_CELL, "method", "seed", "round", "evaluated", *_COUNTED],
        optional=[metric.key],
    )
    frame = frame.sort_values("round", kind="stable")
    runs = frame.groupby([*_CELL, "method", "seed"], sort=False)
    frame = frame.assign(
        steps=runs["local_steps"].cumsum().astype(float),
        bytes=runs["bytes_up"].cumsum().astype(float) + runs["bytes_down"].cumsum(),
    )
    return frame[frame["evaluated"].astype(bool)].dropna(subset=[metric.key])


def rounds_to_target(summary: Summary) -> pd.DataFrame:
    """What each method took to a stated accuracy, per cell, method and target.

    Columns: dataset, clients, skew, method, share, target, round, steps, bytes. The targets are
    ``SHARES`` of the reported personal accuracy of ``YARDSTICK`` in that cell; cells without it
    have none. A method is there at its first evaluation at which the mean over seeds, smoothed
    over ``SMOOTHED`` evaluations, is at least the target; NaN where it never is.
    """
    curves = progress(summary)
    rows: list[dict[str, Any]] = []
    for cell in summary.cells():
        here = curves[cell.matches(curves)]
        if here.empty:
            continue
        final = summary.reported_values(cell, summary.personal.key).get(YARDSTICK)
        if not final:
            continue
        yardstick = float(np.mean(list(final.values())))
        place = {
            "dataset": cell.setting.dataset,
            "clients": cell.setting.clients,
            "skew": cell.skew,
        }
        for share in SHARES:
            for method, line in groups(here, "method"):
                reached = first_reached(line, share * yardstick)
                rows.append(
                    place
                    | {"method": method, "share": share, "target": share * yardstick}
                    | reached
                )
    columns = [*_CELL, "method", "share", "target", "round", "steps", "bytes"]
    return pd.DataFrame(rows, columns=columns)


def first_reached(line: pd.DataFrame, target: float) -> dict[str, float]:
    """round, steps and bytes of the first evaluation whose smoothed mean is at least ``target``."""
    ordered = line.sort_values("round")
    there = ordered[smoothed(ordered["mean"].to_numpy(dtype=float)) >= target]
    costs = ("round", "steps", "bytes")
    return {name: float(there[name].iloc[0]) if len(there) else float("nan") for name in costs}


def smoothed(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Mean of each value and the ``SMOOTHED`` − 1 before it; of fewer at the beginning."""
    return pd.Series(np.asarray(values)).rolling(SMOOTHED, min_periods=1).mean().to_numpy()
