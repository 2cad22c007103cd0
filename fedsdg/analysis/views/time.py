"""Accuracy against the simulated clock, and what waiting and lateness cost."""

from __future__ import annotations

import pandas as pd

from fedsdg.analysis.frames import CASE, PLACE, RUN, finished, groups, split_scenario
from fedsdg.analysis.names import GLOBAL
from fedsdg.analysis.summary import Summary

_LINE = [*PLACE, "scenario", "method"]
#: Counts of uploads and of clients, and idle time: columns of a round.
COUNTS = ["idle_seconds", "arrived", "late", "discarded", "passed_over", "dropped"]
#: Clients without time for an update: a column only of the rounds that have any.
LACKING = "out_of_time"


def accuracy_over_time(summary: Summary) -> pd.DataFrame:
    """Mean accuracy at each simulated second: personal (the headline) and global.

    A run has the accuracy of its last evaluation until the next, and to the end of the longest run
    of its line. The mean is taken from where every seed has been evaluated, at the times at which
    any of them was.

    Returns:
        ``PLACE``, scenario, method, metric, seconds, n, mean.
    """
    metrics = [summary.personal.key, GLOBAL.key]
    frame = summary.frame("rounds", [*CASE, "seed", "evaluated"], ["simulated_seconds", *metrics])
    frame = frame[frame["evaluated"].astype(bool) & frame["simulated_seconds"].notna()]
    columns = [*_LINE, "metric", "seconds", "n", "mean"]
    parts = []
    for key, runs in groups(split_scenario(frame), *_LINE):
        for metric in metrics:
            # A column for each seed, which keeps its accuracy until its next evaluation.
            curves = runs.pivot_table(metric, "simulated_seconds", "seed", aggfunc="last").ffill()
            means = curves.dropna().mean(axis=1).rename("mean").rename_axis("seconds")
            names = dict(zip(_LINE, key, strict=True)) | {"metric": metric, "n": curves.shape[1]}
            parts.append(means.reset_index().assign(**names))
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def costs_of_waiting(summary: Summary) -> pd.DataFrame:
    """The clock and the counts of whole runs: means over seeds.

    Returns:
        ``PLACE``, scenario, method, personal (the headline) and global accuracy, those of
        ``COUNTS`` summed over the rounds, ``simulated_seconds``, ``LACKING`` where any client was,
        the ``discarded_share`` of all uploads, and ``n``.
    """
    identity = [*CASE, "seed"]
    frame = summary.frame("rounds", identity, ["simulated_seconds", *COUNTS, LACKING])
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
    lines = per_run.groupby(_LINE, sort=False)
    return lines[[n for n in per_run if n not in RUN]].mean().assign(n=lines.size()).reset_index()
