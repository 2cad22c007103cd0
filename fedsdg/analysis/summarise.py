"""Gather the folders of finished runs into a few tidy parquet files, one row per run at the least.

A run that failed, was not run, or left no result at all is a row, never a missing row.
Rows stand in one fixed order, so the same runs give the same bytes; times are kept apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from fedsdg.analysis.differences import DIFFERENCES_SCHEMA, differences
from fedsdg.analysis.long_tables import one_behind_the_other, widened
from fedsdg.analysis.names import NOT_RUN
from fedsdg.analysis.run_folders import find_runs
from fedsdg.analysis.summary_schemas import (
    IDENTITY_SCHEMA,
    RECORD_SCHEMAS,
    RUNS_SCHEMA,
    SUMMARY_TIMINGS_SCHEMA,
    run_order,
)
from fedsdg.files import read_json, write_json
from fedsdg.files.places import NAMED, RECORD, SEARCH, filled, run_below
from fedsdg.files.records import (
    CLIENTS_MORE,
    CLIENTS_SCHEMA,
    ROUNDS_MORE,
    ROUNDS_SCHEMA,
    read_parquet,
    write_parquet,
    write_tables,
)

#: The files of the summary that may have more columns than their schema.
_RECORDS = ("rounds", "clients")


class Recorded(Protocol):
    """A run whose tables can be had one after the other: see ``Gathered`` and ``RunFolder``."""

    @property
    def row(self) -> Mapping[str, Any]:
        """Its row of runs.parquet."""

    def schema(self, name: str) -> pa.Schema:
        """The columns of its ``rounds``, ``clients`` or ``timings``."""

    def table(self, name: str) -> pa.Table:
        """Their rows."""


@dataclass(frozen=True)
class FailedRun:
    """One run without a result, with the error it recorded, or "not run"."""

    dataset: str
    clients: int
    skew: str
    method: str
    seed: int
    error: str

    def __str__(self) -> str:
        return f"{run_below(vars(self))}: {self.error}"


@dataclass(frozen=True)
class Gathered:
    """A run as the summary holds it: its row of runs.parquet, and what the other files say of it.

    ``rounds`` and ``clients`` are the run's own records; ``timings`` has ``wall_seconds`` and
    ``peak_rss_mb`` beside them.
    """

    row: Mapping[str, Any]
    rounds: pa.Table
    clients: pa.Table
    timings: pa.Table

    @property
    def folder(self) -> str:
        """Where its files lie below ``results/runs/{experiment}``."""
        return run_below(self.row)

    def schema(self, name: str) -> pa.Schema:
        """The columns of ``rounds``, ``clients`` or ``timings``."""
        return self.table(name).schema

    def table(self, name: str) -> pa.Table:
        """The rows of ``rounds``, ``clients`` or ``timings``."""
        tables = {"rounds": self.rounds, "clients": self.clients, "timings": self.timings}
        return tables[name]


def summarise(
    runs_dir: str | Path,
    output_dir: str | Path,
    wanted: Iterable[str] | None = None,
    search: Path | None = None,
    primary: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write {runs,rounds,clients,timings,differences}.parquet and primary.json of an experiment.

    ``runs_dir`` is ``results/runs/{experiment}`` and holds
    ``{dataset}/clients~{K}/{skew}/{method}/seed~{seed}/``. ``rounds`` and ``clients`` are the
    runs' own records with the identity columns in front, and a column that only some runs have is
    null in the others; ``timings`` adds ``wall_seconds`` and
    ``peak_rss_mb`` of provenance.json, and is the only file that differs between two computations.
    ``wanted`` names the folders of the grid relative to ``runs_dir``: runs of a former config are
    then left out, and a run without a folder is a row that was not run. None takes what is there.
    ``search``: what a search of hyper-parameters found, copied to ``search.json``.
    ``primary`` are the comparisons named beforehand, written to primary.json as they are: what was
    named stays with the runs, and the verdicts follow from both (``comparisons``).
    Raises ``FileNotFoundError`` if there is no run folder.
    """
    write_summary(find_runs(Path(runs_dir), wanted), output_dir)
    found = Path(output_dir) / "search.json"
    if search is None:
        found.unlink(missing_ok=True)
    else:
        write_json(found, read_json(search))
    write_json(Path(output_dir) / NAMED, list(primary))


def write_summary(runs: Iterable[Recorded], output_dir: str | Path) -> None:
    """Write the parquet files of these runs, in the fixed order whatever theirs."""
    ordered = sorted(runs, key=lambda run: run_order(run.row))
    output = Path(output_dir)
    rows = [run.row for run in ordered]
    write_parquet(output / "runs.parquet", rows, RUNS_SCHEMA)
    for name, schema in RECORD_SCHEMAS.items():
        if name in _RECORDS:
            schema = widened(schema, (run.schema(name) for run in ordered))
        schema = pa.schema([*IDENTITY_SCHEMA, *schema])
        parts = ((run.row, run.table(name)) for run in ordered)
        write_tables(output / f"{name}.parquet", one_behind_the_other(parts, schema), schema)
    write_parquet(output / "differences.parquet", differences(rows), DIFFERENCES_SCHEMA)


def search_file(experiment: str, results: Path = Path("results")) -> Path | None:
    """The search of an experiment: the one made here, else the committed one, else None."""
    made = results / filled(SEARCH, experiment=experiment).relative_to("results")
    places = (
        made,
        results / filled(RECORD, experiment=experiment).relative_to("results") / "search.json",
    )
    return next((file for file in places if file.is_file()), None)


def read_summary(summary_dir: str | Path) -> list[Gathered]:
    """The runs that ``write_summary`` wrote, in its order; they give the same files again.

    Raises ``ValueError`` that names the file which is damaged, missing or does not fit the others.
    """
    folder = Path(summary_dir)
    rows = [
        {name: row.get(name) for name in RUNS_SCHEMA.names}
        for row in _readable(folder / "runs.parquet").to_pylist()
    ]
    names = [_identity(row) for row in rows]
    parts: dict[str, dict[tuple[Any, ...], pa.Table]] = {}
    for kind in RECORD_SCHEMAS:
        file = folder / f"{kind}.parquet"
        parts[kind] = _by_run(_readable(file), file)
        if unknown := parts[kind].keys() - set(names):
            raise _unreadable(file, f"its run {min(unknown)} is none of runs.parquet")
    runs = []
    for row, name in zip(rows, names, strict=True):
        if row["status"] == "ok" and name not in parts["rounds"]:
            raise _unreadable(folder / "rounds.parquet", f"it has no rows of the run {name}")
        runs.append(
            Gathered(
                row,
                _own(parts["rounds"].get(name), ROUNDS_SCHEMA, ROUNDS_MORE.names),
                _own(parts["clients"].get(name), CLIENTS_SCHEMA, CLIENTS_MORE.names),
                _own(parts["timings"].get(name), SUMMARY_TIMINGS_SCHEMA),
            )
        )
    return runs


def _identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in IDENTITY_SCHEMA.names)


def _readable(file: Path) -> pa.Table:
    """A file of a summary that has at least the identity columns."""
    try:
        table = read_parquet(file)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(file, str(error).splitlines()[0]) from error
    if lacking := set(IDENTITY_SCHEMA.names) - set(table.column_names):
        raise _unreadable(file, f"it lacks the column {sorted(lacking)[0]!r}")
    return table


def _unreadable(file: Path, what: str) -> ValueError:
    return ValueError(
        f"{file} is damaged ({what}); restore it from the repository, or make it anew from runs "
        "with 'fedsdg record' without --merge"
    )


def _by_run(table: pa.Table, file: Path) -> dict[tuple[Any, ...], pa.Table]:
    """Identity of a run -> its rows, which stand together."""
    columns = [table[name].to_pylist() for name in IDENTITY_SCHEMA.names]
    names = list(zip(*columns, strict=True))
    begins = [k for k, name in enumerate(names) if not k or name != names[k - 1]]
    found = {}
    for begin, end in zip(begins, [*begins[1:], len(names)], strict=True):
        if names[begin] in found:
            raise _unreadable(file, f"the rows of the run {names[begin]} do not stand together")
        found[names[begin]] = table.slice(begin, end - begin)
    return found


def _own(table: pa.Table | None, schema: pa.Schema, more: Sequence[str] = ()) -> pa.Table:
    """A run's own record: without its identity, and without what only other runs have.

    ``more``: the names of columns beyond the schema, in their order.
    """
    if table is None:
        return schema.empty_table()
    others = [name for name in table.column_names if name not in IDENTITY_SCHEMA.names]
    usual = [name for name in schema.names if name in others]
    rest = [name for name in others if name not in schema.names]
    rest.sort(key=lambda name: more.index(name) if name in more else len(more))
    return table.select([*usual, *(name for name in rest if table[name].null_count < len(table))])


def failed_runs(summary_dir: str | Path) -> list[FailedRun]:
    """The runs of a summary whose status is not "ok", in the summary's order.

    Of a run that was not run the error is ``NOT_RUN``.
    """
    columns = ["dataset", "clients", "skew", "method", "seed", "status", "error"]
    file = Path(summary_dir) / "runs.parquet"
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing; run 'fedsdg summarise' first")
    rows = read_parquet(file, columns).to_pylist()
    failed = []
    for row in rows:
        if (status := row.pop("status")) != "ok":
            error = NOT_RUN if status == NOT_RUN else row["error"] or "no error was recorded"
            failed.append(FailedRun(**{**row, "error": error}))
    return failed
