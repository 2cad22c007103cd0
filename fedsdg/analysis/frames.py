"""Runs as a frame: finished ones, with their scenario and settings, and means over their seeds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedsdg.analysis.inference import mean_interval
from fedsdg.analysis.names import dataset_title, skew_order, skew_title
from fedsdg.analysis.summary import Summary
from fedsdg.files.places import split_setting

#: A place where runs are compared; ``skew`` is without the scenario here.
PLACE = ["dataset", "clients", "skew"]
#: A method at a place, as in the records: ``skew`` holds the scenario as well.
CASE = [*PLACE, "method"]
#: Columns of a mean over seeds.
MEAN = ["n", "mean", "low", "high"]
#: ``CASE`` with the scenario in a column of its own: the runs that are averaged over their seeds.
ROW = [*PLACE, "scenario", "method"]
#: Identity of a run in a frame whose scenarios were split off.
RUN = [*ROW, "seed"]


def split_scenario(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with ``skew`` alone, and its scenario in a column of its own."""
    parts = {skew: split_setting(skew) for skew in frame["skew"].unique()}
    return frame.assign(
        skew=frame["skew"].map(lambda skew: parts[skew][0]),
        scenario=frame["skew"].map(lambda skew: parts[skew][1]),
    )


def finished(summary: Summary) -> pd.DataFrame:
    """The runs that are ok, each in a row.

    Returns:
        ``RUN``, ``type``, ``settings`` (a mapping of dotted keys of the run's config to their
        values), and the reported values of the metrics by the metrics' keys.
    """
    columns = [*CASE, "seed", "type"]
    rows = [
        {name: run[name] for name in columns}
        | {"settings": flat(json.loads(run["config"]))}
        | {metric.key: run.get(f"{summary.reported}_{metric.key}") for metric in summary.metrics}
        for run in summary.runs
        if run["status"] == "ok"
    ]
    names = [*columns, "settings", *(metric.key for metric in summary.metrics)]
    frame = pd.DataFrame(rows, columns=names)
    numbers = {metric.key: frame[metric.key].astype(float) for metric in summary.metrics}
    return split_scenario(frame.assign(**numbers))


def flat(tree: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Dotted keys of a tree of JSON: {"a": {"b": 1}} → {"a.b": 1}.

    Args:
        tree: Nested mappings.
        place: The dotted key of the tree itself.
    """
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        inner = f"{place}.{key}" if place else key
        leaves |= flat(value, inner) if isinstance(value, Mapping) else {inner: value}
    return leaves


def groups(frame: pd.DataFrame, *by: str) -> Iterator[tuple[Any, pd.DataFrame]]:
    """(value, rows) for each value of a column, or (values, rows) of several, as they appear."""
    return iter(frame.groupby(list(by) if len(by) > 1 else by[0], sort=False, dropna=False))


def in_order(frame: pd.DataFrame, column: str, order: Sequence[str]) -> pd.DataFrame:
    """The rows that have one of these values in a column, in the order of the values.

    Args:
        frame: Rows; those of one value keep their order.
        column: The column.
        order: The values, each once.
    """
    rows = frame[frame[column].isin(order)]
    return rows.sort_values(
        column, key=lambda values: values.map(order.index), kind="stable", ignore_index=True
    )


def over_seeds(
    frame: pd.DataFrame, by: Sequence[str], value: str, spread: bool = False
) -> pd.DataFrame:
    """Mean and 95 % Student-t interval of a column over the runs that agree in ``by``.

    Args:
        frame: One row for each run; those without a value are left out.
        by: The identity columns of the result.
        value: The column that is averaged.
        spread: Whether the standard deviation is wanted as well.

    Returns:
        A row for each group in the order of first appearance: ``by``, ``n``, ``mean``, ``low``,
        ``high``, and with ``spread`` also ``std`` and ``half``, the half-width of the interval. One
        seed allows no interval: ``low`` and ``high`` are then the mean, ``std`` and ``half`` NaN.
    """
    rows = []
    for key, group in groups(frame.dropna(subset=[value]), *by):
        interval = mean_interval(group[value].to_numpy(dtype=float))
        low = interval.mean if interval.low is None else interval.low
        high = interval.mean if interval.high is None else interval.high
        row: dict[str, Any] = {"n": interval.n, "mean": interval.mean, "low": low, "high": high}
        if spread:
            row |= {"std": interval.std, "half": interval.half_width}
        rows.append(dict(zip(by, key, strict=True)) | row)
    columns = [*by, *MEAN, *(("std", "half") if spread else ())]
    return pd.DataFrame(rows, columns=columns)


def places(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """(title, rows) of every place of a frame in the fixed order.

    The data set stands in the title where there are several.
    """
    several = len(frame[["dataset", "clients"]].drop_duplicates()) > 1
    keys = frame[PLACE].drop_duplicates().itertuples(index=False, name=None)
    for dataset, clients, skew in sorted(keys, key=lambda k: (k[0], k[1], skew_order(k[2]))):
        where = (frame["dataset"] == dataset) & (frame["clients"] == clients)
        title = skew_title(skew)
        if several:
            title = f"{dataset_title(dataset)}, {clients} clients, {title}"
        yield title, frame[where & (frame["skew"] == skew)]


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of plain values for JSON, None where there is none."""
    rows = frame.to_dict("records")
    return [{str(name): _plain(value) for name, value in row.items()} for row in rows]


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value
