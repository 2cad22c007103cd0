"""Gather the folders of finished runs into a few tidy parquet files, one row per run at the least.

A run that failed, was not run, or left no result at all is a row, never a missing row.
Rows stand in one fixed order, so the same runs give the same bytes; times are kept apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from fedsdg.analysis.differences import DIFFERENCES_SCHEMA, differences
from fedsdg.analysis.long_tables import one_behind_the_other, widened
from fedsdg.analysis.names import NOT_RUN
from fedsdg.analysis.run_folders import find_runs
from fedsdg.analysis.summary import Roles, roles_of, usual_roles
from fedsdg.analysis.summary_schemas import (
    IDENTITY_SCHEMA,
    LATER_SCHEMA,
    RECORD_SCHEMAS,
    RUNS_SCHEMA,
    run_order,
)
from fedsdg.files import read_json, write_json
from fedsdg.files.places import NAMED, RECORD, ROLES, SEARCH, filled, run_below
from fedsdg.files.records import read_parquet, write_parquet, write_tables

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
    roles: Mapping[str, Any] | None = None,
) -> None:
    """Write {runs,rounds,clients,timings,differences}.parquet, primary.json and roles.json.

    ``runs_dir`` is ``results/runs/{experiment}`` and holds
    ``{dataset}/clients~{K}/{skew}/{method}/seed~{seed}/``. ``rounds`` and ``clients`` are the
    runs' own records with the identity columns in front, and a column that only some runs have is
    null in the others; ``timings`` adds ``wall_seconds`` and
    ``peak_rss_mb`` of provenance.json, and is the only file that differs between two computations.
    ``wanted`` names the folders of the grid relative to ``runs_dir``: runs of a former config are
    then left out, and a run without a folder is a row that was not run. None takes what is there.
    ``search``: what a search of hyper-parameters found, copied to ``search.json``.
    ``primary`` are the comparisons named beforehand, written to primary.json as they are: what was
    named stays with the runs, and the verdicts follow from both (``comparisons``). ``roles``: who
    is the subject, the baselines and the ceiling, written to roles.json; None: the usual ones.
    Raises ``FileNotFoundError`` if there is no run folder.
    """
    who = usual_roles() if roles is None else roles_of(roles)
    write_summary(find_runs(Path(runs_dir), wanted), output_dir, who)
    found = Path(output_dir) / "search.json"
    if search is None:
        found.unlink(missing_ok=True)
    else:
        write_json(found, read_json(search))
    write_json(Path(output_dir) / NAMED, list(primary))
    write_json(Path(output_dir) / ROLES, asdict(who))


def write_summary(runs: Iterable[Recorded], output_dir: str | Path, roles: Roles) -> None:
    """Write the parquet files of these runs, in the fixed order whatever theirs."""
    ordered = sorted(runs, key=lambda run: run_order(run.row))
    output = Path(output_dir)
    rows = [run.row for run in ordered]
    write_parquet(output / "runs.parquet", rows, RUNS_SCHEMA, LATER_SCHEMA)
    for name, schema in RECORD_SCHEMAS.items():
        if name in _RECORDS:
            schema = widened(schema, (run.schema(name) for run in ordered))
        schema = pa.schema([*IDENTITY_SCHEMA, *schema])
        parts = ((run.row, run.table(name)) for run in ordered)
        write_tables(output / f"{name}.parquet", one_behind_the_other(parts, schema), schema)
    found = differences(rows, roles.subject)
    write_parquet(output / "differences.parquet", found, DIFFERENCES_SCHEMA)


def search_file(experiment: str, results: Path = Path("results")) -> Path | None:
    """The search of an experiment: the one made here, else the committed one, else None."""
    made = results / filled(SEARCH, experiment=experiment).relative_to("results")
    places = (
        made,
        results / filled(RECORD, experiment=experiment).relative_to("results") / "search.json",
    )
    return next((file for file in places if file.is_file()), None)


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
