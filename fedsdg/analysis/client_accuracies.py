"""What each client had at the end of a run: its mean over the evaluations of the last quarter."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from fedsdg.analysis.names import EXPECTED, PERSONAL
from fedsdg.analysis.summary import Summary

#: Metrics that are means over clients, and the column of clients.parquet that they are means of.
CLIENT_COLUMNS = {EXPECTED.key: "expected_accuracy", PERSONAL.key: "test_accuracy"}

_CELL = ["dataset", "clients", "skew"]
_RUN = [*_CELL, "method", "seed"]


def client_accuracies(summary: Summary, metric: str) -> Mapping[Hashable, np.ndarray]:
    """(dataset, clients, skew, method, seed) → an accuracy for each client, shares of 1.

    ``metric`` is a key of ``CLIENT_COLUMNS``. Rounds are those > 3R/4 of R; clients that are held
    out of training are left out, as they are in the mean over clients. A client without an
    evaluation there has no entry.
    """
    column = CLIENT_COLUMNS[metric]
    lengths = {
        tuple(run[name] for name in _RUN): run["rounds"]
        for run in summary.runs
        if run["status"] == "ok" and run["rounds"]
    }
    # What no run needs is not even read: most rows are of earlier rounds.
    late = pc.field("round") > 3 * min(lengths.values(), default=0) // 4
    frame = summary.frame(
        "clients",
        [*_RUN, "round", "client", column],
        ["held_out"],
        where=late & pc.field(column).is_valid(),
    )
    found: dict[Hashable, np.ndarray] = {}
    means = (
        frame[~frame["held_out"].eq(True)]
        .merge(_table(lengths), on=_RUN)
        .query("4 * round > 3 * length")
        .groupby([*_RUN, "client"], sort=False)[column]
        .mean()
        .reset_index()
    )
    for key, rows in means.groupby(_RUN, sort=False).indices.items():
        found[key] = means[column].to_numpy()[rows]
    return found


def _table(lengths: Mapping[tuple[object, ...], int]) -> pd.DataFrame:
    rows = [(*run, length) for run, length in lengths.items()]
    return pd.DataFrame(rows, columns=[*_RUN, "length"])
