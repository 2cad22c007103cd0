"""Accuracy against the simulated clock, and what waiting and lateness cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from fedsdg.analysis.frames import PLACE, RUN, finished, groups, split_scenario
from fedsdg.analysis.names import GLOBAL, PERSONAL
from fedsdg.analysis.summary import Summary

_IDENTITY = ["dataset", "clients", "skew", "method", "seed"]
#: Counts of uploads and of clients, and idle time: columns of a round.
COUNTS = ["idle_seconds", "arrived", "late", "discarded", "passed_over", "dropped"]
#: Clients without time for an update: a column only of the rounds that have any.
LACKING = "out_of_time"


def accuracy_over_time(summary: Summary) -> pd.DataFrame:
    """Mean accuracy at each simulated second.

    Columns: ``PLACE``, scenario, method, metric, seconds, n, mean. A run has the accuracy of its
    last evaluation until the next, and to the end of the longest run of its line. The mean is
    taken from where every seed has been evaluated, at the times at which any of them was.
    """
    metrics = [PERSONAL.key, GLOBAL.key]
    frame = summary.frame("rounds", [*_IDENTITY, "evaluated", *metrics], ["simulated_seconds"])
    frame = frame[frame["evaluated"].astype(bool) & frame["simulated_seconds"].notna()]
    frame = split_scenario(frame)
    line = [*PLACE, "scenario", "method"]
    parts = []
    for key, runs in groups(frame, *line):
        for metric in metrics:
            known = runs.dropna(subset=[metric]).sort_values("simulated_seconds")
            curves = [run for _, run in groups(known, "seed")]
            if curves:
                part = _mean_curve([(c["simulated_seconds"], c[metric]) for c in curves])
                names: dict[str, Any] = dict(zip(line, key, strict=True))
                names |= {"metric": metric, "n": len(curves)}
                parts.append(part.assign(**names))
    columns = [*line, "metric", "seconds", "n", "mean"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def _mean_curve(curves: list[tuple[pd.Series, pd.Series]]) -> pd.DataFrame:
    times = [seconds.to_numpy() for seconds, _ in curves]
    union = np.unique(np.concatenate(times))
    grid = union[union >= max(t[0] for t in times)]
    steps = [
        values.to_numpy()[np.searchsorted(t, grid, side="right") - 1]
        for t, (_, values) in zip(times, curves, strict=True)
    ]
    return pd.DataFrame({"seconds": grid, "mean": np.mean(steps, axis=0)})


def costs_of_waiting(summary: Summary) -> pd.DataFrame:
    """Means over seeds per ``PLACE``, scenario and method of a whole run's clock and counts.

    Columns: ``n``, ``simulated_seconds``, those of ``COUNTS`` summed over the rounds,
    ``discarded_share`` of all uploads, personal (the headline's) and global accuracy, and
    ``LACKING`` where any client was.
    """
    frame = summary.frame("rounds", _IDENTITY, ["simulated_seconds", *COUNTS, LACKING])
    frame = split_scenario(frame[frame["simulated_seconds"].notna()])
    runs = frame.groupby(RUN, sort=False)
    totals = runs[COUNTS].sum(min_count=1).join(runs["simulated_seconds"].max())
    if frame[LACKING].notna().any():
        totals[LACKING] = runs[LACKING].sum()
    # Whatever is sent arrives in time, arrives late and is used, or is discarded in the end.
    uploads = totals[["arrived", "discarded"]].sum(axis=1, min_count=1)
    totals["discarded_share"] = totals["discarded"] / uploads.where(uploads > 0)
    accuracies = finished(summary)[[*RUN, summary.personal.key, GLOBAL.key]]
    per_run = accuracies.merge(totals.reset_index(), on=RUN)
    measured = [name for name in per_run.columns if name not in RUN]
    lines = per_run.groupby([*PLACE, "scenario", "method"], sort=False)
    return lines[measured].mean().assign(n=lines.size()).reset_index()
