"""Several arenas as one set of tasks: the cells of their records, and the methods that all have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsdg.analysis.names import (
    METRIC_KEYS,
    NOT_RUN,
    Metric,
    learn_titles,
    method_order,
    metric_named,
)
from fedsdg.analysis.summary import Cell, Summary
from fedsdg.files import hint


@dataclass(frozen=True)
class Task:
    """A cell of an arena, and the ``seeds`` at which its methods are compared."""

    summary: Summary
    cell: Cell
    seeds: tuple[int, ...]

    @property
    def arena(self) -> str:
        return self.summary.experiment

    @property
    def title(self) -> str:
        return f"{self.arena}: {self.summary.cell_name(self.cell)}"


@dataclass(frozen=True)
class Arenas:
    """The ``methods`` that have the ``metric`` in every cell, and the cells as tasks.

    Every task has the same number of seeds, all of which every method has there.
    """

    summaries: tuple[Summary, ...]
    metric: Metric
    methods: tuple[str, ...]
    tasks: tuple[Task, ...]

    @property
    def subject(self) -> str:
        """The subject of the first of the arenas."""
        return self.summaries[0].roles.subject

    @property
    def seeds(self) -> int:
        """How many seeds each task has."""
        return len(self.tasks[0].seeds)

    def scores(self, method: str) -> np.ndarray:
        """What is reported of the metric, shares of 1: [tasks, seeds]."""
        rows = []
        for task in self.tasks:
            values = task.summary.reported_values(task.cell, self.metric.key)[method]
            rows.append([values[seed] for seed in task.seeds])
        return np.array(rows, dtype=np.float64)


def read_arenas(
    records: str | Path,
    names: Sequence[str],
    metric: str,
    read: Callable[[Path], Summary] = Summary,
) -> Arenas:
    """The arenas of these names below the folder ``records``, each as ``read`` gives its summary.

    A method belongs to them if it has the metric in every cell of each; the line of a pooled
    training takes no part. The seeds of a cell are the lowest that all of these methods have
    there, as many as in the cell with the fewest. Raises ``ValueError`` for an unknown metric or
    arena, for one named twice or without means of the last quarter, and where no method or seed is
    common to all.
    """
    if metric not in METRIC_KEYS:
        raise ValueError(f"there is no metric {metric!r}{hint(metric, METRIC_KEYS)}")
    if twice := [name for name in names if list(names).count(name) > 1]:
        raise ValueError(f"the arena {twice[0]!r} is named twice; name each once")
    summaries = tuple(read(_folder(Path(records), name)) for name in names)
    for summary in summaries:
        if summary.reported != "quarter":
            raise ValueError(
                f"the runs in {summary.folder} report no mean of their last quarter, which is what "
                "arenas are compared by: they are from before, make them anew"
            )
    learn_titles([run for summary in summaries for run in summary.runs])
    cells = [(summary, cell) for summary in summaries for cell in _cells_run(summary)]
    values = [summary.reported_values(cell, metric) for summary, cell in cells]
    common = set(values[0]).intersection(*values) if values else set()
    methods = sorted((m for m in common if not summaries[0].roles.is_ceiling(m)), key=method_order)
    if not methods:
        raise ValueError(f"no method has {metric!r} in every cell of {', '.join(names)}")
    seeds = [sorted(set.intersection(*(set(own[m]) for m in methods))) for own in values]
    fewest = min(map(len, seeds))
    tasks = tuple(
        Task(summary, cell, tuple(own[:fewest]))
        for (summary, cell), own in zip(cells, seeds, strict=True)
    )
    if not fewest:
        where = next(task.title for task, own in zip(tasks, seeds, strict=True) if not own)
        raise ValueError(f"{', '.join(methods)} have no seed in common at {where}")
    shown = metric_named(metric, [m for summary in summaries for m in summary.metrics])
    return Arenas(summaries, shown, tuple(methods), tasks)


def _folder(records: Path, name: str) -> Path:
    if not (records / name / "runs.parquet").is_file():
        known = sorted(file.parent.name for file in records.glob("*/runs.parquet"))
        raise ValueError(f"there is no record of {name!r} in {records}{hint(name, known)}")
    return records / name


def _cells_run(summary: Summary) -> list[Cell]:
    """The cells of which something was run."""
    cells = summary.cells()
    return [c for c in cells if any(run["status"] != NOT_RUN for run in summary.at(c))]
