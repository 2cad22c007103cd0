"""Paired differences between the subject and every rival, cell by cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from fedsdg.analysis.inference import holm, paired_difference
from fedsdg.analysis.names import method_order, reported_metrics, reported_rounds

#: ``mean``, ``low``, ``high``, ``half_width`` and the means are shares of 1; ``rival_method`` is
#: the method compared with (it differs from ``rival`` for the better FedAvg of older records).
DIFFERENCES_SCHEMA = pa.schema(
    [
        ("experiment", pa.string()),
        ("dataset", pa.string()),
        ("clients", pa.int64()),
        ("skew", pa.string()),
        ("metric", pa.string()),
        ("at", pa.string()),
        ("subject", pa.string()),
        ("rival", pa.string()),
        ("rival_method", pa.string()),
        ("n", pa.int64()),
        ("subject_mean", pa.float64()),
        ("rival_mean", pa.float64()),
        ("mean", pa.float64()),
        ("half_width", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("p", pa.float64()),
        ("p_holm", pa.float64()),
    ]
)

_CELL = ("experiment", "dataset", "clients", "skew")


def differences(runs: Sequence[Mapping[str, Any]], subject: str) -> list[dict[str, Any]]:
    """Rows of ``DIFFERENCES_SCHEMA`` from rows of runs.parquet (any order within a cell).

    Per cell, metric and reported round: subject − rival over the seeds at which both are ok, as
    mean, Student-t 95 % interval and two-sided p; Holm's correction runs over the rivals of that
    family. Metrics and reported rounds are those that the runs have. A cell without the subject
    yields no row.
    """
    cells: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for run in runs:
        cells.setdefault(tuple(run[name] for name in _CELL), []).append(run)
    rows: list[dict[str, Any]] = []
    metrics, rounds = reported_metrics(runs), reported_rounds(runs)
    for cell, members in cells.items():
        for metric in metrics:
            for at in rounds:
                family = _family(by_seed(members, f"{at}_{metric.key}"), subject)
                place = {**dict(zip(_CELL, cell, strict=True)), "metric": metric.key, "at": at}
                rows += [place | row for row in family]
    return rows


def by_seed(runs: Sequence[Mapping[str, Any]], column: str) -> dict[str, dict[int, float]]:
    """Method → seed → value of the runs that are ok and have a value."""
    values: dict[str, dict[int, float]] = {}
    for run in runs:
        if run["status"] == "ok" and (value := run.get(column)) is not None:
            values.setdefault(run["method"], {})[run["seed"]] = value
    return values


def _family(values: Mapping[str, Mapping[int, float]], subject: str) -> list[dict[str, Any]]:
    if subject not in values:
        return []
    rows = []
    for rival in sorted(values, key=method_order):
        if rival != subject and (row := _compare(values, subject, rival)):
            rows.append(row)
    for row, adjusted in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = adjusted
    return rows


def _compare(
    values: Mapping[str, Mapping[int, float]], subject: str, rival: str
) -> dict[str, Any] | None:
    difference = paired_difference(values[subject], values[rival])
    if difference is None:
        return None
    interval = difference.interval
    return {
        "subject": subject,
        "rival": rival,
        "rival_method": rival,
        "n": interval.n,
        "subject_mean": difference.subject_mean,
        "rival_mean": difference.rival_mean,
        "mean": interval.mean,
        "half_width": interval.half_width,
        "low": interval.low,
        "high": interval.high,
        "p": difference.p,
    }
