"""Paired differences between the subject and every rival, cell by cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pyarrow as pa

from fedsdg.analysis.inference import holm, paired_difference
from fedsdg.analysis.names import method_order, reported_metrics, reported_rounds

_CELL = ("experiment", "dataset", "clients", "skew")
#: The numbers of a paired difference, all shares of 1 except p.
_NUMBERS = ("subject_mean", "rival_mean", "mean", "half_width", "low", "high", "p")

#: Columns of differences.parquet. ``rival_method`` is the method compared with; it differs from
#: ``rival`` only in records whose rival was the better FedAvg.
DIFFERENCES_SCHEMA = pa.schema(
    [
        *((name, pa.int64() if name == "clients" else pa.string()) for name in _CELL),
        *((name, pa.string()) for name in ("metric", "at", "subject", "rival", "rival_method")),
        ("n", pa.int64()),
        *((name, pa.float64()) for name in (*_NUMBERS, "p_holm")),
    ]
)


def differences(runs: Sequence[Mapping[str, Any]], subject: str) -> list[dict[str, Any]]:
    """Compare the subject with every rival, per cell, metric and reported round.

    A difference is subject − rival over the seeds at which both are ok, with a Student-t 95 %
    interval and a two-sided p; Holm's correction runs over the rivals of one cell, metric and
    round. A cell without the subject yields no row.

    Args:
        runs: Rows of runs.parquet, in any order within a cell.
        subject: The label of the method that is compared with the others.

    Returns:
        Rows of ``DIFFERENCES_SCHEMA``.
    """
    cells: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for run in runs:
        cells.setdefault(tuple(run[name] for name in _CELL), []).append(run)
    rows: list[dict[str, Any]] = []
    families = product(cells.items(), reported_metrics(runs), reported_rounds(runs))
    for (cell, members), metric, at in families:
        values = by_seed(members, f"{at}_{metric.key}")
        names = dict(zip(_CELL, cell, strict=True))
        names |= {"metric": metric.key, "at": at, "subject": subject}
        family = []
        for rival in sorted(values.keys() - {subject}, key=method_order):
            difference = paired_difference(values.get(subject, {}), values[rival])
            if difference is not None:
                facts = {**vars(difference.interval), **vars(difference)}
                numbers = {name: facts[name] for name in ("n", *_NUMBERS)}
                family.append({**names, "rival": rival, "rival_method": rival, **numbers})
        for row, adjusted in zip(family, holm([row["p"] for row in family]), strict=True):
            rows.append({**row, "p_holm": adjusted})
    return rows


def by_seed(runs: Sequence[Mapping[str, Any]], column: str) -> dict[str, dict[int, float]]:
    """Return method → seed → value, for the runs that are ok and have a value.

    Args:
        runs: Rows of runs.parquet.
        column: A column of it.
    """
    values: dict[str, dict[int, float]] = {}
    for run in runs:
        if run["status"] == "ok" and (value := run.get(column)) is not None:
            values.setdefault(run["method"], {})[run["seed"]] = value
    return values
