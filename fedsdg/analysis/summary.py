"""Read a summary folder: what was run, in which order it is shown, and which files were read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedsdg.analysis.differences import by_seed
from fedsdg.analysis.names import (
    EXPECTED_WORST,
    GLOBAL,
    NOT_RUN,
    WORST,
    Metric,
    dataset_title,
    learn_titles,
    method_order,
    reported_metrics,
    reported_rounds,
    skew_order,
    skew_title,
)
from fedsdg.analysis.roles import Roles, roles_of, usual_roles
from fedsdg.files import read_json
from fedsdg.files.places import NAMED, ROLES
from fedsdg.files.records import read_parquet


@dataclass(frozen=True, order=True)
class Setting:
    """A data set shared by a number of clients; one block of a table, one group of panels."""

    dataset: str
    clients: int

    @property
    def title(self) -> str:
        return f"{dataset_title(self.dataset)}, {self.clients} clients"


@dataclass(frozen=True)
class Cell:
    """A setting under one skew: the place where methods are compared, one panel of a figure."""

    setting: Setting
    skew: str

    def matches(self, frame: pd.DataFrame) -> pd.Series:
        """Boolean mask of a frame's rows that belong to this cell."""
        return (
            (frame["dataset"] == self.setting.dataset)
            & (frame["clients"] == self.setting.clients)
            & (frame["skew"] == self.skew)
        )


class Summary:
    """The parquet files of ``results/summary/{experiment}``, read when asked for.

    ``inputs`` lists the files read so far: what a figure made from this object depends on.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.inputs: list[Path] = []
        self.runs = self.rows("runs")
        if not self.runs:
            raise ValueError(f"{self.folder / 'runs.parquet'} holds no run; summarise again")
        learn_titles(self.runs)

    def primary(self) -> list[dict[str, Any]]:
        """The definitions in ``NAMED``; none where the folder has no such file."""
        named: list[dict[str, Any]] = self._facts(NAMED) or []
        return named

    @cached_property
    def roles(self) -> Roles:
        """Who is who: see ``roles``; records from before lack the file, and have the usual."""
        said = self._facts(ROLES)
        return usual_roles() if said is None else roles_of(said)

    def _facts(self, name: str) -> Any:
        """A JSON file of the folder; None where there is none."""
        path = self.folder / name
        if not path.is_file():
            return None
        if path not in self.inputs:
            self.inputs.append(path)
        return read_json(path)

    def _file(self, name: str) -> Path:
        path = self.folder / f"{name}.parquet"
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing; run 'fedsdg summarise' first")
        if path not in self.inputs:
            self.inputs.append(path)
        return path

    def frame(
        self,
        name: str,
        columns: list[str] | None = None,
        optional: Sequence[str] = (),
        where: pc.Expression | None = None,
    ) -> pd.DataFrame:
        """One file (``rounds``, ``clients``, ``timings``, ``differences``) as a frame.

        ``optional`` columns are those that only runs under some condition record: where the file
        has none of that name, the frame has one without a value. ``where``: the rows that are
        wanted, as they are read; all without it.
        """
        file = self._file(name)
        there = pq.read_schema(file).names
        wanted = None if columns is None else [*columns, *(c for c in optional if c in there)]
        frame: pd.DataFrame = read_parquet(file, wanted, where).to_pandas()
        return frame.assign(**{name: np.nan for name in optional if name not in there})

    def rows(self, name: str) -> list[dict[str, Any]]:
        """One file as rows of plain values, None where there is none: for the small files."""
        return read_parquet(self._file(name)).to_pylist()

    def search(self) -> dict[str, Any] | None:
        """What ``fedsdg search`` found of hyper-parameters; None where no search was made."""
        found: dict[str, Any] | None = self._facts("search.json")
        return found

    @property
    def experiment(self) -> str:
        return str(self.runs[0]["experiment"])

    @cached_property
    def rounds(self) -> Mapping[str, str]:
        """What is reported → its title: see ``names.reported_rounds``; the first is preferred."""
        return reported_rounds(self.runs)

    @property
    def reported(self) -> str:
        """What tables and figures report: "quarter", or "last" of records from before."""
        return next(iter(self.rounds))

    @cached_property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that the runs have, the headline first: see ``names.reported_metrics``."""
        return reported_metrics(self.runs)

    @property
    def personal(self) -> Metric:
        """The headline: expected accuracy, or that on the own shard in records from before."""
        return self.metrics[0]

    @property
    def worst(self) -> Metric:
        """The worst decile of the headline."""
        return EXPECTED_WORST if EXPECTED_WORST in self.metrics else WORST

    @property
    def headlines(self) -> tuple[Metric, ...]:
        """What the main table shows: personal, worst decile, global."""
        return (self.personal, self.worst, GLOBAL)

    def settings(self) -> list[Setting]:
        return sorted({Setting(run["dataset"], run["clients"]) for run in self.runs})

    def skews(self, setting: Setting) -> list[str]:
        return sorted({run["skew"] for run in self.of(setting)}, key=skew_order)

    def cells(self) -> list[Cell]:
        return [Cell(setting, skew) for setting in self.settings() for skew in self.skews(setting)]

    def cell_title(self, cell: Cell) -> str:
        """The skew; the setting stands in front where the experiment has more than one."""
        skew = skew_title(cell.skew)
        return skew if len(self.settings()) == 1 else f"{cell.setting.title}\n{skew}"

    def cell_name(self, cell: Cell) -> str:
        """The skew in short, for notes; the setting stands in front where there are several."""
        skew = skew_title(cell.skew, short=True)
        return skew if len(self.settings()) == 1 else f"{cell.setting.title}, {skew}"

    def grid(self) -> tuple[int, int, list[tuple[int, int, Cell]]]:
        """Cells laid out for panels: rows (settings), columns (skews), and (row, column, cell)."""
        settings = self.settings()
        places = [
            (row, column, Cell(setting, skew))
            for row, setting in enumerate(settings)
            for column, skew in enumerate(self.skews(setting))
        ]
        return len(settings), 1 + max(column for _, column, _ in places), places

    def of(self, setting: Setting) -> list[dict[str, Any]]:
        """The runs of one setting."""
        key = (setting.dataset, setting.clients)
        return [run for run in self.runs if (run["dataset"], run["clients"]) == key]

    def at(self, cell: Cell) -> list[dict[str, Any]]:
        """The runs of one cell."""
        return [run for run in self.of(cell.setting) if run["skew"] == cell.skew]

    def methods(self, setting: Setting | None = None) -> list[str]:
        runs = self.runs if setting is None else self.of(setting)
        return sorted({run["method"] for run in runs}, key=method_order)

    def run_methods(self) -> list[str]:
        """The methods of which something was run: what figures show."""
        runs = [run for run in self.runs if run["status"] != NOT_RUN]
        return sorted({run["method"] for run in runs}, key=method_order)

    def subject(self) -> str | None:
        """The subject, or the first of its variants where an ablation runs only those."""
        subject = self.roles.subject
        variants = {run["method"] for run in self.runs if subject in (run["type"], run["method"])}
        return min(variants, key=method_order, default=None)

    def values(self, cell: Cell, column: str) -> dict[str, dict[int, float]]:
        """Method → seed → value of runs.parquet, over runs that are ok and have one."""
        return by_seed(self.at(cell), column)

    def reported_values(self, cell: Cell, key: str) -> dict[str, dict[int, float]]:
        """Method → seed → what is reported of the metric ``key``: see ``reported``."""
        return self.values(cell, f"{self.reported}_{key}")
