"""From folders of runs to a summary, and from summaries to the committed record of an experiment.

A run that failed or was not run is a row of runs.parquet with its error, never a missing row. The
same runs give the same bytes; times stand apart, in timings.parquet. Rows of thousands of runs do
not fit into memory, so they are read and written a row group at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from fedsdg.files import (
    canonical_json,
    differences,
    hint,
    read_json,
    require_unchanged,
    write_hashes,
    write_json,
)
from fedsdg.files import records as schemas
from fedsdg.files.places import DIVISION, run_below, split_setting
from fedsdg.files.records import read_parquet, write_tables
from fedsdg.next_analysis.names import natural_order
from fedsdg.next_analysis.records import IDENTITY, damaged, guarded, identities

#: Status of a run that nobody has started; the others are "ok" and "failed".
NOT_RUN = "not run"
#: Tables with rows of every run, and the columns that come first.
TABLES = {
    "rounds": schemas.ROUNDS_SCHEMA.names,
    "clients": schemas.CLIENTS_SCHEMA.names,
    "timings": schemas.TIMINGS_SCHEMA.names,
}
_ROWS_OF_A_GROUP = 128 * 1024
#: Columns of timings.parquet that come from the provenance of a run.
_MEASURED = ("wall_seconds", "peak_rss_mb")
_HASHES = ("config_hash", "partition_hash", "backbone_hash", "source_hash")
#: Texts in runs.parquet, which every record has.
_TEXTS = ("type", "status", "error", *_HASHES, "config")
#: What tells entries of provenance.json apart: code, machine, and how it was used.
_FACTS = (
    *("commit", "dirty", "python", "versions", "platform", "machine", "processor", "host"),
    *("cpu_count", "device", "threads", "seeds_together"),
)
_IDENTITY_FIELDS = [
    (name, pa.int64() if name in ("clients", "seed") else pa.string()) for name in IDENTITY
]
#: Keys of a config in which runs of one experiment may differ, those that all runs of a method
#: share, and keys of ``training`` that a method may have for itself.
_OF_A_RUN = ("dataset", "skew", "seed")
_OF_A_METHOD = ("method", "parameters", "plugin")
_OWN_TRAINING = (
    *("optimiser", "loss", "eta_g", "eta_p", "eta_m", "private_optimiser", "refresh"),
    *("epochs", "batch_size"),
)

Methods = Mapping[str, Mapping[str, Any]]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class _Run:
    """A run, whether its tables lie in a folder of its own or in a record."""

    row: Row
    """Its row of runs.parquet."""
    fields: Callable[[str], pa.Schema]
    """Table → its columns."""
    table: Callable[[str], pa.Table]
    """Table → the rows of the run, read anew with every call."""


# --- folders of runs → summary -------------------------------------------------------------------


def summarise(
    folders: Iterable[Path], output: Path, methods: Methods, *, search: Path | None = None
) -> None:
    """Write the tables of runs, where and with what they were made, and what their methods are.

    Args:
        folders: The folders of all runs that are asked for: {experiment}/{dataset}/
            clients~{clients}/{skew}/{method}/seed~{seed}. One that is missing was not run.
        output: The folder of the summary.
        methods: Label → title, family, personal, oracle, order.
        search: What a search of hyper-parameters found.

    Raises:
        FileNotFoundError: No folder is asked for.
        ValueError: A folder is misnamed, holds a run of another experiment, or a damaged file.
    """
    runs = {folder: _run_in(folder) for folder in folders}
    if not runs:
        raise FileNotFoundError("there is no run to summarise; train first")
    experiments = {run.row["experiment"]: folder for folder, run in runs.items()}
    if len(experiments) > 1:
        (one, _), (other, stray), *_ = experiments.items()
        raise ValueError(
            f"{stray} is a run of {other!r} among runs of {one!r}; summarise one experiment alone"
        )
    _write(output, list(runs.values()), methods)
    origins = [_origin(folder, run.row) for folder, run in runs.items()]
    write_json(output / "provenance.json", _joined(origins))
    (output / "search.json").unlink(missing_ok=True)
    if search is not None:
        write_json(output / "search.json", read_json(search))


def failed_runs(summary: Path) -> dict[str, str]:
    """Return folder below results/runs/{experiment} → error of the runs that did not succeed.

    The error of a run that was not run is ``NOT_RUN``.
    """
    return {
        run_below(row): row["error"] or row["status"]
        for row in _rows_of(summary).values()
        if row["status"] != "ok"
    }


def _run_in(folder: Path) -> _Run:
    dataset, clients, skew, method, seed = folder.parts[-5:]
    result = _result(folder)
    row = {"error": None, **{k: v for k, v in result.items() if not isinstance(v, dict | list)}}
    for at, reading in result.items():
        if isinstance(reading, dict) and at != "config":
            row |= {f"{at}_{name}": value for name, value in reading.items()}
    row |= {
        "experiment": result.get("experiment", folder.resolve().parts[-6]),
        "dataset": dataset,
        "clients": _number(clients, folder),
        "skew": skew,
        "method": method,
        "seed": _number(seed, folder),
        "type": result.get("method"),
        "config": canonical_json(result["config"]) if "config" in result else None,
    }
    return _Run(row, partial(_fields_in, folder), partial(_table_in, folder))


def _result(folder: Path) -> dict[str, Any]:
    if not folder.exists():
        return {"status": NOT_RUN}
    if not (folder / "result.json").is_file():
        return {"status": "failed", "error": "the run left no result.json"}
    return {"status": "failed", **read_json(folder / "result.json")}


def _number(part: str, folder: Path) -> int:
    name, _, value = part.partition("~")
    if not value.isdecimal():
        raise ValueError(f"{folder}: {part!r} should read {name}~<whole number>")
    return int(value)


def _fields_in(folder: Path, table: str) -> pa.Schema:
    file = folder / f"{table}.parquet"
    schema = guarded(file, pq.read_schema) if file.is_file() else pa.schema([])
    measured = _MEASURED if table == "timings" else ()
    return pa.schema([*schema, *((name, pa.float64()) for name in measured)])


def _table_in(folder: Path, table: str) -> pa.Table:
    """Return the rows of a run; none where it left no such file.

    Its timings have the seconds and the memory of the whole run in each row, and at least one.
    """
    file = folder / f"{table}.parquet"
    rows = guarded(file, read_parquet) if file.is_file() else pa.table({})
    if table != "timings":
        return rows
    rows = rows if file.is_file() else pa.table({"round": pa.nulls(1, pa.int32())})
    facts = _provenance(folder)
    for name in _MEASURED:
        value = pa.scalar(facts.get(name), pa.float64())
        rows = rows.append_column(name, pa.repeat(value, len(rows)))
    return rows


def _provenance(folder: Path) -> dict[str, Any]:
    file = folder / "provenance.json"
    facts: dict[str, Any] = read_json(file) if file.is_file() else {}
    return facts


def _origin(folder: Path, row: Row) -> dict[str, Any]:
    """Return the entry of provenance.json of one run."""
    facts = _provenance(folder)
    days = {"first": facts.get("started"), "last": facts.get("finished")}
    return {**facts, **days, "runs": [run_below(row)] if row["status"] == "ok" else []}


def _joined(origins: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Join entries of provenance.json whose facts are equal; first and last are days."""
    entries: dict[str, dict[str, Any]] = {}
    for origin in origins:
        facts = {name: origin[name] for name in _FACTS if name in origin}
        if not origin["runs"]:
            continue
        entry = entries.setdefault(canonical_json(facts), {**facts, "runs": []})
        entry["runs"] = sorted([*entry["runs"], *origin["runs"]])
        for name, choose in (("first", min), ("last", max)):
            if origin.get(name) is not None:
                entry[name] = choose(origin[name], entry.get(name, origin[name]))
    return [entries[facts] for facts in sorted(entries)]


# --- tables of runs ------------------------------------------------------------------------------


def _write(output: Path, runs: Sequence[_Run], methods: Methods) -> None:
    """Write runs.parquet, the tables of their rows, and methods.json."""
    known = {run.row["method"]: methods.get(run.row["method"]) for run in runs}
    facts = {label: dict(about) for label, about in known.items() if about}
    ordered = sorted(runs, key=lambda run: _order(run.row, facts))
    table = pa.Table.from_pylist([dict(run.row) for run in ordered], _runs_schema(ordered))
    write_tables(output / "runs.parquet", [table], table.schema)
    for name in TABLES:
        schema = _schema(name, ordered)
        rows = (_named(run.row, run.table(name), schema) for run in ordered)
        write_tables(output / f"{name}.parquet", _groups(rows, schema), schema)
    write_json(output / "methods.json", facts)


def _order(row: Row, methods: Methods) -> tuple[Any, ...]:
    """Sort runs by data set, clients, skew, method and seed."""
    method = methods.get(row["method"], {}).get("order", np.inf), row["method"]
    return row["dataset"], row["clients"], natural_order(row["skew"]), method, row["seed"]


def _runs_schema(runs: Sequence[_Run]) -> pa.Schema:
    """Return the columns of runs.parquet: identity, texts, and numbers that some run has."""
    names = {name for run in runs for name in run.row}
    found = pa.Table.from_pylist([{name: run.row.get(name) for name in names} for run in runs])
    texts = [(name, pa.string()) for name in _TEXTS]
    first = [*IDENTITY, *_TEXTS]
    others = [f for f in found.schema if f.name not in first and not pa.types.is_null(f.type)]
    return pa.schema([*_IDENTITY_FIELDS, *texts, *sorted(others, key=lambda field: field.name)])


def _schema(table: str, runs: Sequence[_Run]) -> pa.Schema:
    """Return the columns of a table: identity, what every run has, what some runs have."""
    fields = {field.name: field.type for run in runs for field in run.fields(table)}
    usual = [name for name in TABLES[table] if name in fields]
    names = [*usual, *sorted(fields.keys() - {*usual, *IDENTITY})]
    return pa.schema([*_IDENTITY_FIELDS, *((name, fields[name]) for name in names)])


def _named(row: Row, table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a run's rows behind its identity, null in columns that the run lacks."""
    columns = []
    for field in schema:
        if field.name in IDENTITY:
            columns.append(pa.repeat(pa.scalar(row[field.name], field.type), len(table)))
        elif field.name in table.column_names:
            columns.append(table[field.name].cast(field.type))
        else:
            columns.append(pa.nulls(len(table), field.type))
    return pa.table(columns, schema=schema)


def _groups(tables: Iterable[pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
    """Join tables to row groups, of which one is in memory at a time."""
    waiting = [schema.empty_table()]
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= _ROWS_OF_A_GROUP:
            yield pa.concat_tables(waiting).combine_chunks()
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()


# --- summaries and records → one folder ----------------------------------------------------------


def join(parts: Sequence[tuple[Path, pd.DataFrame]], output: Path) -> None:
    """Put chosen runs of summaries or records together in one folder.

    Args:
        parts: Folder and rows of its runs.parquet that are wanted; no run twice.
        output: The folder of what ``summarise`` writes.

    Raises:
        FileNotFoundError: A folder lacks a file.
        ValueError: A file is damaged.
    """
    texts = [frame[IDENTITY].astype(str).agg("/".join, axis=1) for _, frame in parts]
    _join([(folder, set(own)) for (folder, _), own in zip(parts, texts, strict=True)], output)


def _join(parts: Sequence[tuple[Path, Collection[str]]], output: Path) -> None:
    """Put the runs of these identities together in one folder."""
    runs: list[_Run] = []
    origins: list[dict[str, Any]] = []
    methods: dict[str, Any] = {}
    for folder, wanted in parts:
        rows = {identity: row for identity, row in _rows_of(folder).items() if identity in wanted}
        if not rows:
            continue
        stored = {name: _Stored(folder / f"{name}.parquet") for name in TABLES}
        runs += [_recorded(identity, row, stored) for identity, row in rows.items()]
        done = {run_below(row) for row in rows.values()}
        for origin in read_json(folder / "provenance.json"):
            origins.append({**origin, "runs": [run for run in origin["runs"] if run in done]})
        methods = {**read_json(folder / "methods.json"), **methods}
    _write(output, runs, methods)
    write_json(output / "provenance.json", _joined(origins))


def _rows_of(folder: Path) -> dict[str, Row]:
    """Return the rows of runs.parquet by their identity."""
    rows: list[Row] = guarded(folder / "runs.parquet", read_parquet).to_pylist()
    return {"/".join(str(row[name]) for name in IDENTITY): row for row in rows}


def _recorded(identity: str, row: Row, stored: Mapping[str, _Stored]) -> _Run:
    return _Run(row, lambda table: stored[table].schema, lambda table: stored[table].rows(identity))


class _Stored:
    """A table of a record, of which one row group is in memory at a time."""

    def __init__(self, file: Path) -> None:
        require_unchanged(file)
        self._parquet = guarded(file, pq.ParquetFile)
        self.schema: pa.Schema = self._parquet.schema_arrow
        self._places = _places(file)
        counts = [self._parquet.metadata.row_group(i).num_rows for i in range(self._groups)]
        self._starts = np.cumsum([0, *counts])
        self._group = lru_cache(maxsize=1)(self._parquet.read_row_group)

    @property
    def _groups(self) -> int:
        return int(self._parquet.metadata.num_row_groups)

    def rows(self, identity: str) -> pa.Table:
        """Return the rows of a run."""
        first, last = self._places.get(identity, (0, 0))
        parts = [self.schema.empty_table()]
        for i in range(self._groups):
            low, high = max(first, self._starts[i]), min(last, self._starts[i + 1])
            if low < high:
                parts.append(self._group(i).slice(low - self._starts[i], high - low))
        return pa.concat_tables(parts)


def _places(file: Path) -> dict[str, tuple[int, int]]:
    """Return the first row of each run in a table, and the first behind it."""
    names = identities(guarded(file, partial(read_parquet, columns=IDENTITY)))
    codes = names.combine_chunks().dictionary_encode()
    indices = codes.indices.to_numpy()
    starts = np.flatnonzero(np.diff(indices, prepend=-1))
    if len(starts) > len(codes.dictionary):
        raise damaged(file, "the rows of a run do not stand together")
    ends = np.append(starts[1:], len(indices))
    spans = zip(starts.tolist(), ends.tolist(), strict=True)
    return dict(zip(codes.dictionary.to_pylist(), spans, strict=True))


# --- summary → record ----------------------------------------------------------------------------


def keep_record(summary: Path, record: Path, *, merge: bool = False) -> None:
    """Write the record of an experiment anew; the folder appears whole or not at all.

    It holds what the summary does; the partitions of the lowest seed, the facts of backbones and
    the tuned values; every table as CSV and Markdown; pages.json, which names its tables and the
    figures for which it has data; and the hashes of its data.

    Args:
        summary: The folder of a summary, results/summary/{experiment}.
        record: The folder of the record.
        merge: Keep the runs of the record that were not made here.

    Raises:
        FileNotFoundError: There is no summary, or the facts of a backbone are missing.
        ValueError: A run failed, a file is damaged, or runs that stay do not fit those made here.
    """
    _require_finished(summary)
    here = _rows_of(summary)
    parts: list[tuple[Path, Collection[str]]] = [(summary, here)]
    folders = [summary, summary.parents[1]]
    # A search may have left its values in the folder before the first runs are recorded.
    if merge and (record / "runs.parquet").is_file():
        recorded = _rows_of(record)
        made = {identity for identity, row in here.items() if row["status"] != NOT_RUN}
        staying = recorded.keys() - made
        _require_alike([recorded[one] for one in sorted(staying)], [here[one] for one in made])
        parts = [(summary, here.keys() - staying), (record, staying)]
        folders.append(record)
    with _appearing(record) as partial_record:
        _join(parts, partial_record)
        _copy_search(summary, record, partial_record)
        _copy_sources(folders, partial_record)
        _write_pages(folders, partial_record)
        files = [file.name for file in partial_record.iterdir()]
        write_hashes(partial_record, [f for f in files if f.endswith((".parquet", ".json"))])


def _require_finished(summary: Path) -> None:
    if not (summary / "runs.parquet").is_file():
        known = sorted(folder.name for folder in summary.parent.glob("*") if folder.is_dir())
        raise FileNotFoundError(
            f"there is no summary of {summary.name!r} in {summary}: run the experiment first"
            f"{hint(summary.name, known) if known else ''}"
        )
    failed = {run: error for run, error in failed_runs(summary).items() if error != NOT_RUN}
    for run, error in failed.items():
        raise ValueError(
            f"{len(failed)} run(s) of {summary.name!r} failed, the first is {run}: {error}"
        )


def _require_alike(staying: Sequence[Row], made: Sequence[Row]) -> None:
    """Refuse runs that share less than the runs of one experiment do."""
    recorded: dict[tuple[str, ...], tuple[Any, str]] = {}
    for row in [row for row in staying if row["status"] == "ok"]:
        recorded |= {fact: (value, run_below(row)) for fact, value in _shared(row).items()}
    for row in made:
        for fact, value in _shared(row).items():
            there, other = recorded.get(fact, (value, ""))
            for difference in differences(there, value, fact[-1]):
                raise ValueError(
                    f"the runs computed here cannot join the record of {row['experiment']!r}: "
                    f"{difference} (its run {other}, and {run_below(row)} of those here); "
                    "record without --merge to replace it"
                )


def _shared(row: Row) -> dict[tuple[str, ...], Any]:
    """Return what a run shares: owner and name → value."""
    config = json.loads(row["config"])
    skew, scenario = split_setting(row["skew"])
    training = config.get("training", {})
    all_runs = {k: v for k, v in config.items() if k not in (*_OF_A_RUN, *_OF_A_METHOD, "training")}
    of_method = {name: config.get(name) for name in (*_OF_A_METHOD, "training")}
    division = (row["dataset"], str(row["clients"]), skew, str(row["seed"]))
    return {
        (scenario, ""): all_runs,
        (scenario, "training"): {k: v for k, v in training.items() if k not in _OWN_TRAINING},
        (scenario, row["method"], ""): of_method,
        (scenario, row["method"], "source_hash"): row["source_hash"],
        (str(config.get("backbone")), "backbone_hash"): row["backbone_hash"],
        (*division, "partition_hash"): row["partition_hash"],
    }


@contextlib.contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """Yield a folder beside another one, whose place it takes if the block succeeds."""
    new, old = (folder.with_name(f".{folder.name}.{os.getpid()}.{name}") for name in ("new", "old"))
    new.mkdir(parents=True)
    try:
        yield new
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _copy_search(summary: Path, former: Path, record: Path) -> None:
    """Copy what a search found: here, or else for the former record."""
    results, name = summary.parents[1], summary.name
    places = {
        "search.json": (summary / "search.json", former / "search.json"),
        "tuned.yaml": (results / f"search/{name}.tuned.yaml", former / "tuned.yaml"),
    }
    for target, sources in places.items():
        for source in [source for source in sources if source.is_file()][:1]:
            shutil.copyfile(source, record / target)


def _copy_sources(folders: Sequence[Path], record: Path) -> None:
    """Copy partitions of the lowest seed, if there are any, and the facts of backbones."""
    rows = [*_rows_of(record).values()]
    seed = min(row["seed"] for row in rows)
    places = [{**row, "skew": split_setting(row["skew"])[0], "seed": seed} for row in rows]
    partitions = {f"partitions/{DIVISION.format_map(place)}" for place in places}
    configs = [json.loads(row["config"]) for row in rows if row["status"] == "ok"]
    names = {config.get("backbone") for config in configs} - {None}
    backbones = {f"backbones/{name}.json" for name in names}
    for file in sorted(partitions | backbones):
        found = [folder / file for folder in folders if (folder / file).is_file()]
        if not found and file in backbones:
            raise FileNotFoundError(
                f"{folders[1] / file} is missing, which says what the backbone is; pretrain it anew"
            )
        if found:
            (record / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(found[0], record / file)


def _write_pages(folders: Sequence[Path], record: Path) -> None:
    """Write the tables that are shown, and pages.json without figures that have no data."""
    # Here, not above: of what tables and figures need, gathering runs needs nothing.
    from fedsdg.next_analysis.figures import sidecars
    from fedsdg.next_analysis.records import Record
    from fedsdg.next_analysis.render import USUAL, add_pages, write_shown

    pages = [read_json(f / "pages.json") for f in folders if (f / "pages.json").is_file()] or [{}]
    tables, figures = (
        list(dict.fromkeys(name for page in pages for name in page.get(kind, USUAL[kind])))
        for kind in ("tables", "figures")
    )
    opened = Record(record)
    add_pages(record, tables, [name for name in figures if sidecars(name, opened)])
    write_shown(opened, record, None, [f"table:{name}" for name in tables], tex=False)
