"""Records of an experiment as tidy frames: one row per run, round or client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedsdg.analysis.names import METHODS
from fedsdg.files import read_json
from fedsdg.files.records import read_parquet

#: What identifies a row of results over seeds, and a run.
KEY = ["experiment", "cell", "method"]
RUN = [*KEY, "seed"]
#: What identifies a run in the files of a record.
IDENTITY = ["experiment", "dataset", "clients", "skew", "method", "seed"]
_DOUBLE = {pa.float32(): pa.float64(), pa.list_(pa.float32()): pa.list_(pa.float64())}


class Record:
    """The folder of an experiment's record or summary; tables are read when asked for.

    A *cell* is a setting in which methods are compared: the skew with its scenario
    (``iid@half``), after the data set where the experiment has several (``mnist:iid@half``).
    A row of results has the key ``experiment/cell/method``.

    Attributes:
        folder: The folder.
        methods: Label → title, family, personal, oracle and order, as methods.json has them.

    Raises:
        FileNotFoundError: The folder is no record.
        ValueError: A file is damaged, or was changed since it was written.
    """

    def __init__(self, folder: str | Path) -> None:
        """Open a folder and read which methods it has."""
        self.folder = Path(folder)
        self.methods: dict[str, dict[str, Any]] = self.json("methods.json")
        self._columns: dict[tuple[str, str], pa.ChunkedArray] = {}
        self._places: dict[str, np.ndarray] = {}
        METHODS.update(self.methods)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """All runs, failed ones included, with their configs, hashes and stored metrics."""
        file = self.folder / "runs.parquet"
        frame = guarded(file, read_parquet).to_pandas()
        if frame.empty:
            raise damaged(file, "it holds no run")
        several = frame["dataset"].nunique() > 1
        cell = frame["dataset"] + ":" + frame["skew"] if several else frame["skew"]
        return frame.assign(cell=cell)

    @property
    def finished(self) -> pd.DataFrame:
        """The runs that succeeded."""
        return self.runs[self.runs["status"] == "ok"]

    @property
    def name(self) -> str:
        """The experiment."""
        return str(self.runs["experiment"].iloc[0])

    def rows(
        self, table: str, columns: Sequence[str], runs: pd.DataFrame | None = None
    ) -> pd.DataFrame:
        """Return rows of ``rounds``, ``clients`` or ``timings``.

        Args:
            table: The name of the table.
            columns: Columns to read; those that no run recorded are null.
            runs: Rows of ``self.runs`` whose rows are wanted; all that succeeded by default.

        Returns:
            ``RUN``, ``run`` (its place in the index of ``self.runs``), and the columns.
        """
        runs = self.finished if runs is None else runs
        places = self._runs_of(table)
        wanted = np.flatnonzero(np.isin(places, runs.index))
        owners = places[wanted]
        frame = self.runs.loc[owners, RUN].reset_index(drop=True).assign(run=owners)
        for name in columns:
            column = self._column(table, name)
            frame[name] = np.nan if column is None else column.take(wanted).to_pandas()
        return frame

    def json(self, name: str) -> Any:
        """Return what a JSON file of the folder holds."""
        return guarded(self.folder / name, read_json)

    def _column(self, table: str, name: str) -> pa.ChunkedArray | None:
        """Return a column, read once; None if no run has it.

        Records have single precision where that is enough; sums over them are to be in double.
        """
        if (table, name) not in self._columns:
            file = self.folder / f"{table}.parquet"
            if name in guarded(file, pq.read_schema).names:
                column = guarded(file, read_parquet, columns=[name])[name]
                self._columns[table, name] = column.cast(_DOUBLE.get(column.type, column.type))
        return self._columns.get((table, name))

    def _runs_of(self, table: str) -> np.ndarray:
        """Return the run of every row of a table, as its place in ``runs``."""
        if table not in self._places:
            files = [self.folder / f"{name}.parquet" for name in (table, "runs")]
            identities = (guarded(file, read_parquet, columns=IDENTITY) for file in files)
            rows, runs = map(folders_of, identities)
            places = pc.index_in(rows, runs)
            if places.null_count:
                stray = rows[pc.index(places.is_null(), True).as_py()]
                raise damaged(files[0], f"its run {stray} is none of runs.parquet")
            lost = self.finished.index.difference(places.to_numpy())
            if table == "rounds" and len(lost):
                raise damaged(files[0], f"it has no rows of the run {runs[lost[0]]}")
            self._places[table] = places.to_numpy()
        return self._places[table]


def folders_of(table: pa.Table) -> pa.ChunkedArray:
    """Return the folder of every row's run below results/runs/{experiment}."""
    text = {name: table[name].cast(pa.string()) for name in IDENTITY}
    clients = pc.binary_join_element_wise("clients", text["clients"], "~")
    seed = pc.binary_join_element_wise("seed", text["seed"], "~")
    parts = (text["dataset"], clients, text["skew"], text["method"], seed)
    return pc.binary_join_element_wise(*parts, "/")


def guarded(file: Path, read: Callable[..., Any], **options: Any) -> Any:
    """Return what a function reads of a file.

    Args:
        file: The file.
        read: The function; it is given the file.
        options: Further arguments of the function.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is damaged.
    """
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing; run 'fedsdg summarise' first")
    try:
        return read(file, **options)
    except (OSError, pa.ArrowException) as error:
        raise damaged(file, str(error).splitlines()[0]) from error


def damaged(file: Path, why: str) -> ValueError:
    """Return the error for a damaged file.

    Args:
        file: The file.
        why: What is wrong with it.
    """
    return ValueError(
        f"{file} is damaged ({why}); restore it from the repository, or make it anew from runs "
        "with 'fedsdg record' without --merge"
    )


_opened = cache(Record)


def record(folder: str | Path) -> Record:
    """Return the record in a folder, opened once in a process."""
    opened = _opened(folder)
    METHODS.update(opened.methods)  # others may have been opened meanwhile
    return opened


def records(folder: str | Path = "results/reference") -> Iterator[Record]:
    """Yield the record of every experiment below a folder."""
    for file in sorted(Path(folder).glob("[!.]*/runs.parquet")):
        yield record(file.parent)
