"""What methods make of noisy clients: weights and credibility against noise and Shapley values."""

from __future__ import annotations

from itertools import product

import pandas as pd

from fedsdg.analysis.frames import PLACE, RUN, groups, split_scenario
from fedsdg.analysis.inference import correlation_interval, pearson, spearman
from fedsdg.analysis.summary import Summary

#: What a method may say a client is worth, in the order shown.
MEASURES = {
    "weight": "weight (1 = equal)",
    "alignment": "alignment",
    "credibility": "credibility",
    "contribution": "contribution",
    "shapley_estimate": "Shapley value, estimated",
}
#: What it is compared with.
YARDSTICKS = {"noise_rate": "share of wrong labels", "shapley": "exact Shapley value"}


def measures(summary: Summary) -> pd.DataFrame:
    """One row per run and client with a noise rate: ``RUN``, client, and means over the rounds.

    ``weight`` is in units of 1/M, M being the clients weighted in that round; the other measures
    are means over the rounds that recorded them. ``shapley`` is in percentage points of accuracy.
    """
    identity = ["dataset", "clients", "skew", "method", "seed"]
    optional = ["noise_rate", "credibility", "contribution", "shapley", "shapley_estimate"]
    frame = summary.frame(
        "clients", [*identity, "round", "client", "weight", "alignment"], optional
    )
    frame = frame[frame["noise_rate"].notna()]
    cohort = frame.groupby([*identity, "round"])["weight"].transform("count")
    frame = split_scenario(
        frame.assign(weight=frame["weight"] * cohort, shapley=100 * frame["shapley"].astype(float))
    )
    columns = [*MEASURES, *YARDSTICKS]
    return frame.groupby([*RUN, "client"], sort=False)[columns].mean().reset_index()


def correlations(clients: pd.DataFrame) -> pd.DataFrame:
    """Rows per ``PLACE``, scenario, method, measure and yardstick: correlation over the clients.

    Taken within each run and then averaged by Fisher's z (``correlation_interval``): ``runs`` that
    allow one, ``spearman`` with the ends ``low`` and ``high`` of its 95 % interval (None for one
    run), and ``pearson``. A measure that does not vary between clients has no correlation, and no
    row.
    """
    line = [*PLACE, "scenario", "method"]
    rows = []
    for key, runs in groups(clients, *line):
        seeds = [run for _, run in groups(runs, "seed")]
        for measure, yardstick in product(MEASURES, YARDSTICKS):
            pairs = [(run[measure].to_numpy(), run[yardstick].to_numpy()) for run in seeds]
            ranks = [r for pair in pairs if (r := spearman(*pair)) is not None]
            linear = [r for pair in pairs if (r := pearson(*pair)) is not None]
            if not ranks:
                continue
            interval = correlation_interval(ranks)
            rows.append(
                dict(zip(line, key, strict=True))
                | {"measure": measure, "yardstick": yardstick, "runs": interval.n}
                | {"spearman": interval.mean, "low": interval.low, "high": interval.high}
                | {"pearson": correlation_interval(linear).mean}
            )
    columns = [*line, "measure", "yardstick", "runs", "spearman", "low", "high", "pearson"]
    return pd.DataFrame(rows, columns=columns)
