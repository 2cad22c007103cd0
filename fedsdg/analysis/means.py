"""Means over seeds in the order of tables: one row per metric, reading, cell and method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from fedsdg.analysis import statistics
from fedsdg.analysis.layout import amount, points, spread
from fedsdg.analysis.metrics import METRICS, READINGS, values
from fedsdg.analysis.names import cell_title, is_oracle, method_order, method_title, natural_order
from fedsdg.analysis.records import KEY, Record

#: Accuracies by their headings, in the order of the columns.
HEADS = {
    "accuracy": "all clients",
    "accuracy_a": "A",
    "accuracy_b": "B",
    "accuracy_new": "new clients, last quarter",
    "worst_decile": "worst decile",
    "accuracy_own_test": "own test set",
    "accuracy_shared": "shared model",
}
WHERE = "at the round selected on validation data"
BEST = "bold: best of a column, oracles (‡) aside"


def tidy(
    record: Record, metrics: Sequence[str], readings: Sequence[str] = tuple(READINGS)
) -> pd.DataFrame:
    """Return metrics of every run that succeeded.

    Args:
        record: The experiment.
        metrics: Names of ``METRICS``.
        readings: Which readings of a metric that has several.

    Returns:
        ``RUN``, ``metric``, ``at`` (empty for a metric with one reading), ``value``.
    """
    parts = []
    for metric in metrics:
        several = len(METRICS[metric].readings) > 1
        for at in readings if several else ["selected"]:
            found = values(record, metric, at=at)
            parts.append(found.assign(at=at if several else ""))
    return pd.concat(parts, ignore_index=True)


def means(
    record: Record, metrics: Sequence[str], readings: Sequence[str] = tuple(READINGS)
) -> pd.DataFrame:
    """Return means with intervals over seeds.

    Args:
        record: The experiment.
        metrics: Names of ``METRICS``.
        readings: Which readings of a metric that has several.

    Returns:
        ``KEY``, ``metric``, ``at`` (empty for a metric with one reading), ``n``, ``mean``, ``std``,
        ``low``, ``high``; in order.
    """
    frame = tidy(record, metrics, readings)
    return in_order(statistics.interval(frame, [*KEY, "metric", "at"]))


def in_order(frame: pd.DataFrame, line: str = "method") -> pd.DataFrame:
    """Sort rows by metric and reading as they appear, then by cell and method.

    Args:
        frame: Rows with ``metric``, ``at``, ``cell`` and ``line``.
        line: The column of the methods.
    """
    keys: dict[str, Callable[[str], Any] | None] = {"metric": None, "at": None}
    keys |= {"cell": natural_order, line: method_order}

    def ranks(column: pd.Series) -> pd.Series:
        key = keys[str(column.name)]
        ordered = sorted(column.unique(), key=key) if key else column.unique()
        return column.map({value: rank for rank, value in enumerate(ordered)})

    return frame.sort_values([*keys], key=ranks, kind="stable", ignore_index=True)


def heading(metric: str) -> str:
    """Return the heading of a metric's column: its title, and its unit where it has one."""
    if metric in HEADS or metric not in METRICS:
        return HEADS.get(metric, metric.replace("_", " "))
    declared = METRICS[metric]
    return f"{declared.title} ({declared.unit})" if declared.unit else declared.title


def headed(numbers: pd.DataFrame) -> pd.DataFrame:
    """Add ``head``, the heading of the column in which a mean is printed."""
    return numbers.assign(
        head=numbers["metric"].map(heading) + numbers["at"].map({"end": ", end"}).fillna("")
    )


def printed(row: Mapping[Any, Any]) -> str:
    """Print a mean with its interval, as its metric's unit asks for."""
    unit = METRICS[row["metric"]].unit
    return points(row) if unit == "points" else spread(row) if unit == "%" else spread(row, amount)


def best(numbers: pd.DataFrame) -> pd.Series:
    """Mark the highest printed accuracies of every column; oracles do not compete."""
    shown = (
        numbers["mean"].map("{:.1f}".format).astype(float).mask(numbers["method"].map(is_oracle))
    )
    highest = shown.groupby([numbers["cell"], numbers["head"]]).transform("max")
    return (shown == highest) & numbers["metric"].isin([*HEADS])


def seeds(numbers: pd.DataFrame) -> str:
    """Return of how many seeds the means are, at most: "10 seeds"."""
    most = int(numbers["n"].max()) if len(numbers) else 0
    return "1 seed" if most == 1 else f"{most} seeds"


def interval_over(numbers: pd.DataFrame) -> str:
    """Return in words what is printed of means: with intervals, where there are seeds enough."""
    half = (
        "" if numbers["n"].max() < statistics.LEAST_SEEDS else " ± half-width of the 95 % interval"
    )
    return f"Mean{half} over {seeds(numbers)}"


def failures(record: Record) -> tuple[str, ...]:
    """Return a note for each method and cell with runs that failed or were not run."""
    lost = record.runs[record.runs["status"] != "ok"]
    counts = lost.groupby(["method", "cell", "status"], sort=False).size().reset_index(name="runs")
    return tuple(
        f"{method_title(row['method'])}, {cell_title(row['cell'])}: {row['runs']} {row['status']}"
        for row in counts.to_dict("records")
    )
