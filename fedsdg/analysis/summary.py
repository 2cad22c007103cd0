"""Read a summary folder: its runs and roles, the order of what is shown, and the files read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedsdg.analysis import names
from fedsdg.analysis.differences import DIFFERENCES_SCHEMA, by_seed, differences
from fedsdg.analysis.names import Metric, method_order, skew_order, skew_title
from fedsdg.files import read_json
from fedsdg.files.declarations import declarations
from fedsdg.files.places import NAMED, ROLES
from fedsdg.files.records import read_parquet

#: Personal methods are compared with these as well: what a client reaches without its federation,
#: and what it makes of the federation's model on its own.
REFERENCES = ("fine-tune", "local-only")


@dataclass(frozen=True)
class Roles:
    """The roles of some methods in tables, figures and claims."""

    subject: str
    """The method whose lead over the others is examined."""
    baselines: tuple[str, ...]
    """"Ahead of the baselines" means ahead of each."""
    ceiling: str | None
    """A line to measure by that takes no part in a ranking, or None."""

    @property
    def described(self) -> tuple[str, ...]:
        """The rivals of the subject in sentences; the table of differences has all."""
        rivals = dict.fromkeys((*self.baselines, *REFERENCES))
        return tuple(rival for rival in rivals if rival != self.subject)

    def is_ceiling(self, label: str) -> bool:
        """Whether a label stands for the ceiling or a variant of it."""
        ceiling = self.ceiling
        return ceiling is not None and (label == ceiling or label.startswith(f"{ceiling}-"))


def roles_of(facts: Mapping[str, Any]) -> Roles:
    """The roles as a config or a summary states them."""
    return Roles(facts["subject"], tuple(facts["baselines"]), facts["ceiling"])


@cache
def usual_roles() -> Roles:
    """The roles where a config or a record states none."""
    return roles_of(declarations()["usual_roles"])


@dataclass(frozen=True, order=True)
class Setting:
    """A data set shared by a number of clients; one block of a table, one group of panels."""

    dataset: str
    clients: int

    @property
    def title(self) -> str:
        """The data set and the number of clients in print."""
        return f"{names.dataset_title(self.dataset)}, {self.clients} clients"


@dataclass(frozen=True)
class Cell:
    """A setting under one skew, in which methods are compared; one panel of a figure."""

    setting: Setting
    skew: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Cell:
        """The cell of a row with the identity columns."""
        return cls(Setting(row["dataset"], row["clients"]), row["skew"])

    @property
    def place(self) -> dict[str, Any]:
        """The identity columns of its rows and their values: data set, clients and skew."""
        return {**asdict(self.setting), "skew": self.skew}

    def matches(self, frame: pd.DataFrame) -> pd.Series:
        """Boolean mask of a frame's rows that belong to this cell."""
        return (frame[[*self.place]] == [*self.place.values()]).all(axis=1)


class Summary:
    """A folder ``results/summary/{experiment}`` or a record; its files are read when needed.

    ``runs`` are the rows of runs.parquet. ``inputs`` lists the files read so far, on which a figure
    made from this object depends.

    Args:
        folder: The folder, with a runs.parquet.
        seed: Its runs alone count, as if there were no others, even if there are none.

    Raises:
        FileNotFoundError: The folder has no runs.parquet.
        ValueError: runs.parquet has no row.
    """

    def __init__(self, folder: str | Path, seed: int | None = None) -> None:
        self.folder = Path(folder)
        self.seed = seed
        self.inputs: list[Path] = []
        self.runs = self.rows("runs")
        if not self.runs and seed is None:
            raise ValueError(f"{self.folder / 'runs.parquet'} holds no run; summarise again")
        names.learn_titles(self.runs)

    def primary(self) -> list[dict[str, Any]]:
        """The comparisons that the config named beforehand; none without such a file."""
        named: list[dict[str, Any]] = self._facts(NAMED) or []
        return named

    def search(self) -> dict[str, Any] | None:
        """The result of ``fedsdg search``; None where no search was made."""
        result: dict[str, Any] | None = self._facts("search.json")
        return result

    @cached_property
    def roles(self) -> Roles:
        """The roles of the methods; the usual ones in older records, which lack the file."""
        facts = self._facts(ROLES)
        return usual_roles() if facts is None else roles_of(facts)

    def _facts(self, name: str) -> Any:
        """A JSON file of the folder; None where there is none."""
        return read_json(self._input(name)) if (self.folder / name).is_file() else None

    def _file(self, table: str) -> Path:
        path = self.folder / f"{table}.parquet"
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing; run 'fedsdg summarise' first")
        return self._input(path.name)

    def _input(self, name: str) -> Path:
        """A file of the folder, listed among the inputs."""
        path = self.folder / name
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
        """Read one file as a frame.

        Args:
            name: ``rounds``, ``clients``, ``timings`` or ``differences``.
            columns: The columns to read; all by default.
            optional: Columns that runs record under some condition only. They are NaN where the
                file lacks them.
            where: The rows to read; all by default. The others take no memory.
        """
        present = pq.read_schema(self._file(name)).names
        wanted = None if columns is None else [*columns, *(c for c in optional if c in present)]
        frame: pd.DataFrame = self._table(name, wanted, where).to_pandas()
        return frame.assign(**{name: np.nan for name in optional if name not in present})

    def rows(self, name: str) -> list[dict[str, Any]]:
        """One of the small files as rows of plain values, None where there is no value."""
        return self._table(name).to_pylist()

    def _table(
        self, name: str, columns: list[str] | None = None, where: pc.Expression | None = None
    ) -> pa.Table:
        """A file, or the part of it that is of one seed; differences are those of its runs."""
        file = self._file(name)
        if self.seed is None:
            return read_parquet(file, columns, where)
        if name == "differences":
            rows = differences(self.runs, self.roles.subject)
            return pa.Table.from_pylist(rows, DIFFERENCES_SCHEMA)
        alone = pc.field("seed") == self.seed
        return read_parquet(file, columns, alone if where is None else alone & where)

    @property
    def experiment(self) -> str:
        """The name of the experiment."""
        return str(self.runs[0]["experiment"])

    @cached_property
    def rounds(self) -> Mapping[str, str]:
        """Reported round → its title (``names.reported_rounds``); the first is preferred."""
        return names.reported_rounds(self.runs)

    @property
    def reported(self) -> str:
        """The round that tables and figures report: that selected on validation data."""
        return next(iter(self.rounds))

    @cached_property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics of the runs, the headline first (``names.reported_metrics``)."""
        return names.reported_metrics(self.runs)

    @property
    def personal(self) -> Metric:
        """The headline: expected accuracy, or accuracy on the own shard in older records."""
        return self.metrics[0]

    @property
    def worst(self) -> Metric:
        """The worst decile of the headline."""
        return names.EXPECTED_WORST if names.EXPECTED_WORST in self.metrics else names.WORST

    @property
    def headlines(self) -> tuple[Metric, ...]:
        """The metrics of the main table: personal, worst decile, global."""
        return (self.personal, self.worst, names.GLOBAL)

    def settings(self) -> list[Setting]:
        """The settings of the runs, by data set and number of clients."""
        return sorted({Setting(run["dataset"], run["clients"]) for run in self.runs})

    def skews(self, setting: Setting) -> list[str]:
        """The skews of the runs of a setting, ordered by ``skew_order``."""
        return sorted({run["skew"] for run in self.of(setting)}, key=skew_order)

    def cells(self) -> list[Cell]:
        """All cells, ordered by setting and then by skew."""
        return [Cell(setting, skew) for setting in self.settings() for skew in self.skews(setting)]

    def cell_title(self, cell: Cell) -> str:
        """The skew, after the setting where the experiment has more than one."""
        skew = skew_title(cell.skew)
        return skew if len(self.settings()) == 1 else f"{cell.setting.title}\n{skew}"

    def cell_name(self, cell: Cell) -> str:
        """The skew in short, for notes, after the setting where there are several."""
        skew = skew_title(cell.skew, short=True)
        return skew if len(self.settings()) == 1 else f"{cell.setting.title}, {skew}"

    def of(self, setting: Setting) -> list[dict[str, Any]]:
        """The runs of one setting."""
        key = (setting.dataset, setting.clients)
        return [run for run in self.runs if (run["dataset"], run["clients"]) == key]

    def at(self, cell: Cell) -> list[dict[str, Any]]:
        """The runs of one cell."""
        return [run for run in self.of(cell.setting) if run["skew"] == cell.skew]

    def methods(self, setting: Setting | None = None) -> list[str]:
        """The labels of the rows, of one setting or of all, ordered by ``method_order``."""
        runs = self.runs if setting is None else self.of(setting)
        return sorted({run["method"] for run in runs}, key=method_order)

    def run_methods(self) -> list[str]:
        """The methods that figures show, of which something was run."""
        runs = [run for run in self.runs if run["status"] != names.NOT_RUN]
        return sorted({run["method"] for run in runs}, key=method_order)

    def subject(self) -> str | None:
        """The subject, or its first variant where an ablation runs variants only."""
        subject = self.roles.subject
        variants = {run["method"] for run in self.runs if subject in (run["type"], run["method"])}
        return min(variants, key=method_order, default=None)

    def reported_values(
        self, cell: Cell, key: str, at: str | None = None
    ) -> dict[str, dict[int, float]]:
        """Return method → seed → reported value, for the runs that are ok and have one.

        Args:
            cell: The cell whose runs are meant.
            key: The key of a metric.
            at: One of ``rounds``; the preferred one by default.
        """
        return by_seed(self.at(cell), f"{at or self.reported}_{key}")
