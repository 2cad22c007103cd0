"""Accuracy against what it costs: rounds, local steps and bytes, and what a target takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedsdg.analysis.frames import CASE, MEAN, groups, over_seeds
from fedsdg.analysis.names import Metric
from fedsdg.analysis.summary import Summary

#: What accuracy is shown against: column, its axis, and how many of the column are one there.
COSTS = (
    ("round", "round", 1.0),
    ("steps", "local steps of all clients (thousands)", 1e3),
    ("bytes", "MB sent and received", 1e6),
)
#: The yardstick of the targets, and the shares of its reported accuracy that they are.
YARDSTICK, SHARES = "fedavg-uniform", (0.90, 0.95, 0.99)
#: Evaluations that a smoothed value is the mean of: this one and those before it.
SMOOTHED = 3


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
    """What each method took to a stated accuracy, per cell, method and target.

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
