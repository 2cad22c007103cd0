"""From folders of runs to a summary, and from summaries to the committed record of an experiment.

A run that failed or was not run is a row of runs.parquet with its error, never a missing row. The
same runs give the same bytes; times stand apart, in timings.parquet. Rows of thousands of runs do
not fit into memory, so they are read and written a row group at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import pairwise
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
from fedsdg.files.places import DIVISION, RUN_BELOW, run_below, split_setting
from fedsdg.files.records import ROWS_OF_A_GROUP, read_parquet, write_tables
from fedsdg.next_analysis.names import natural_order
from fedsdg.next_analysis.records import IDENTITY, damaged, folders_of, guarded

#: Status of a run that nobody has started; the others are "ok" and "failed".
NOT_RUN = "not run"
#: Columns of timings.parquet that come from the provenance of a run.
_MEASURED = ("wall_seconds", "peak_rss_mb")
#: Tables with rows of every run.
TABLES = ("rounds", "clients", "timings")
_HASHES = ("config_hash", "partition_hash", "backbone_hash", "source_hash")
#: Texts in runs.parquet, which every record has.
_TEXTS = ("type", "status", "error", *_HASHES, "config")
#: What tells entries of provenance.json apart: code, machine, and how it was used.
_FACTS = (
    *("commit", "dirty", "python", "versions", "platform", "machine", "processor", "host"),
    *("cpu_count", "device", "threads", "seeds_together"),
)
#: Keys of a config that are a run's own, those that all runs of a method share, and keys of
#: ``training`` that a method may have for itself.
_OF_A_RUN = ("dataset", "skew", "seed")
_OF_A_METHOD = ("method", "parameters", "plugin", "training")
_OWN_TRAINING = (
    *("optimiser", "loss", "eta_g", "eta_p", "eta_m", "private_optimiser", "refresh"),
    *("epochs", "batch_size"),
)

_FOLDER = re.compile(
    r"(.*/)?(?P<experiment>[^/]+)/(?P<dataset>[^/]+)/clients~(?P<clients>\d+)/(?P<skew>[^/]+)"
    r"/(?P<method>[^/]+)/seed~(?P<seed>\d+)"
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
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Where, when and in what time it was made, if its folder says so."""


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
    runs = [_run_in(folder) for folder in folders]
    if not runs:
        raise FileNotFoundError("there is no run to summarise; train first")
    experiments = sorted({run.row["experiment"] for run in runs})
    if len(experiments) > 1:
        raise ValueError(
            f"the runs for {output} are of the experiments {', '.join(experiments)}; summarise "
            "one alone"
        )
    _write(output, runs, methods)
    done = [run for run in runs if run.row["status"] == "ok"]
    write_json(output / "provenance.json", _joined(_origin(run) for run in done))
    (output / "search.json").unlink(missing_ok=True)
    if search is not None:
        write_json(output / "search.json", read_json(search))


def failed_runs(summary: Path) -> dict[str, str]:
    """Return folder below results/runs/{experiment} → error of the runs that did not succeed.

    The error of a run that was not run is ``NOT_RUN``.
    """
    rows = _rows_of(summary).items()
    return {run: row["error"] or row["status"] for run, row in rows if row["status"] != "ok"}


def _run_in(folder: Path) -> _Run:
    """Return the run in a folder: failed if there is no result, not run if there is no folder."""
    place = _FOLDER.fullmatch(folder.resolve().as_posix())
    if place is None:
        raise ValueError(f"{folder} is no folder of a run; its name should end with {RUN_BELOW}")
    result: dict[str, Any] = {"status": "failed", "error": "the run left no result.json"}
    if not folder.exists():
        result = {"status": NOT_RUN}
    elif (folder / "result.json").is_file():
        result = {"status": "failed", "error": None, **read_json(folder / "result.json")}
    row = {name: value for name, value in result.items() if not isinstance(value, dict | list)}
    for at, reading in result.items():
        if isinstance(reading, dict) and at != "config":
            row |= {f"{at}_{name}": value for name, value in reading.items()}
    row |= {"type": result.get("method"), **place.groupdict()}
    row |= {"clients": int(place["clients"]), "seed": int(place["seed"])}
    row["experiment"] = result.get("experiment", place["experiment"])
    if "config" in result:
        row["config"] = canonical_json(result["config"])
    provenance = folder / "provenance.json"
    facts = read_json(provenance) if provenance.is_file() else {}
    fields = partial(_read_in, folder, pq.read_schema, pa.schema([]))
    return _Run(row, fields, partial(_read_in, folder, read_parquet, pa.table({})), facts)


def _read_in(folder: Path, read: Callable[[Path], Any], without: Any, table: str) -> Any:
    """Read a table of a run; ``without``: what stands for one that is not there."""
    file = folder / f"{table}.parquet"
    return guarded(file, read) if file.is_file() else without


def _origin(run: _Run) -> dict[str, Any]:
    """Return the entry of provenance.json of one run."""
    days = {"first": run.facts.get("started"), "last": run.facts.get("finished")}
    return {**run.facts, **days, "runs": [run_below(run.row)]}


def _joined(origins: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Join entries of provenance.json whose facts are equal; first and last are days."""
    entries: dict[str, dict[str, Any]] = {}
    for origin in origins:
        facts = {name: origin[name] for name in _FACTS if name in origin}
        entry = entries.setdefault(canonical_json(facts), {**facts, "runs": []})
        entry["runs"] = sorted([*entry["runs"], *origin["runs"]])
        for name, choose in (("first", min), ("last", max)):
            if origin.get(name) is not None:
                entry[name] = choose(origin[name], entry.get(name, origin[name]))
    return [entries[facts] for facts in sorted(entries) if entries[facts]["runs"]]


# --- tables of runs ------------------------------------------------------------------------------


def _write(output: Path, runs: Iterable[_Run], methods: Methods) -> None:
    """Write runs.parquet, the tables of their rows, and methods.json."""

    def order(run: _Run) -> tuple[Any, ...]:
        place = [run.row[name] for name in ("dataset", "clients")]
        method = methods.get(run.row["method"], {}).get("order", np.inf), run.row["method"]
        return *place, natural_order(run.row["skew"]), method, run.row["seed"]

    ordered = sorted(runs, key=order)
    table = _runs_table([run.row for run in ordered])
    write_tables(output / "runs.parquet", [table], table.schema)
    for name in TABLES:
        schema = _schema(name, ordered, table.select(IDENTITY).schema)
        rows = (_named(run, run.table(name), schema) for run in ordered)
        write_tables(output / f"{name}.parquet", _groups(rows, schema), schema)
    labels = {run.row["method"] for run in ordered}
    write_json(output / "methods.json", {one: dict(methods[one]) for one in labels & {*methods}})


def _runs_table(rows: Sequence[Row]) -> pa.Table:
    """Return runs.parquet: identity, texts, and what else some run has."""
    first = [*IDENTITY, *_TEXTS]
    others = {name for row in rows for name in row}.difference(first)
    columns = {
        name: pa.array([row.get(name) for row in rows]) for name in [*first, *sorted(others)]
    }
    columns |= {name: columns[name].cast(pa.string()) for name in _TEXTS}
    return pa.table({n: c for n, c in columns.items() if n in first or c.null_count < len(c)})


def _schema(table: str, runs: Sequence[_Run], identity: pa.Schema) -> pa.Schema:
    """Return the columns of a table: identity, and what some run has."""
    fields = {one.name: one.type for run in runs for one in run.fields(table)}
    if table == "timings":
        fields |= dict.fromkeys(_MEASURED, pa.float64())
    others = sorted(fields.keys() - {*IDENTITY})
    return pa.schema([*identity, *((name, fields[name]) for name in others)])


def _named(run: _Run, table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a run's rows behind its identity, null in columns that the run lacks."""
    facts = {**run.row, **run.facts}
    columns = []
    for one in schema:
        if one.name in table.column_names and one.name not in IDENTITY:
            columns.append(table[one.name].cast(one.type))
        else:
            value = facts.get(one.name) if one.name in (*IDENTITY, *_MEASURED) else None
            columns.append(pa.repeat(pa.scalar(value, one.type), len(table)))
    return pa.table(columns, schema=schema)


def _groups(tables: Iterable[pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
    """Join tables to row groups, of which one is in memory at a time."""
    waiting = [schema.empty_table()]
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= ROWS_OF_A_GROUP:
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
    wanted = [folders_of(pa.Table.from_pandas(frame[IDENTITY])).to_pylist() for _, frame in parts]
    _join([(folder, set(own)) for (folder, _), own in zip(parts, wanted, strict=True)], output)


def _join(parts: Sequence[tuple[Path, Collection[str]]], output: Path) -> None:
    """Put the runs of these folders together; they are below results/runs/{experiment}."""
    runs: list[_Run] = []
    origins: list[dict[str, Any]] = []
    methods: dict[str, Any] = {}
    for folder, wanted in [part for part in parts if part[1]]:
        rows = _rows_of(folder)
        stored = {name: _Stored(folder / f"{name}.parquet") for name in TABLES}
        runs += [_recorded(run, rows[run], stored) for run in rows if run in wanted]
        for origin in read_json(folder / "provenance.json"):
            origins.append({**origin, "runs": [run for run in origin["runs"] if run in wanted]})
        methods = {**read_json(folder / "methods.json"), **methods}
    _write(output, runs, methods)
    write_json(output / "provenance.json", _joined(origins))


def _rows_of(folder: Path) -> dict[str, Row]:
    """Return the rows of runs.parquet by the folder of the run."""
    table = guarded(folder / "runs.parquet", read_parquet)
    return dict(zip(folders_of(table).to_pylist(), table.to_pylist(), strict=True))


def _recorded(run: str, row: Row, stored: Mapping[str, _Stored]) -> _Run:
    return _Run(row, lambda table: stored[table].schema, lambda table: stored[table].rows(run))


class _Stored:
    """A table of a record, of which one row group is in memory at a time."""

    def __init__(self, file: Path) -> None:
        require_unchanged(file)
        parquet = guarded(file, pq.ParquetFile)
        self.schema: pa.Schema = parquet.schema_arrow
        self._places = _places(file)
        groups = range(parquet.metadata.num_row_groups)
        self._ends = np.cumsum([0, *(parquet.metadata.row_group(i).num_rows for i in groups)])
        self._group = lru_cache(maxsize=1)(parquet.read_row_group)

    def rows(self, run: str) -> pa.Table:
        """Return the rows of a run."""
        first, last = self._places.get(run, (0, 0))
        parts = [self.schema.empty_table()]
        for i, (low, high) in enumerate(pairwise(self._ends)):
            if low < last and first < high:
                start = max(first - low, 0)
                parts.append(self._group(i).slice(start, min(last, high) - low - start))
        return pa.concat_tables(parts)


def _places(file: Path) -> dict[str, tuple[int, int]]:
    """Return the first row of each run in a table, and the first behind it."""
    table = guarded(file, partial(read_parquet, columns=IDENTITY))
    codes = folders_of(table).combine_chunks().dictionary_encode()
    starts = np.flatnonzero(np.diff(codes.indices.to_numpy(), prepend=-1)).tolist()
    if len(starts) > len(codes.dictionary):
        raise damaged(file, "the rows of a run do not stand together")
    spans = pairwise([*starts, len(table)])
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
    staying: Collection[str] = ()
    # A search may have left its values in the folder before the first runs are recorded.
    if merge and (record / "runs.parquet").is_file():
        recorded = _rows_of(record)
        made = {run: row for run, row in here.items() if row["status"] == "ok"}
        staying = recorded.keys() - made.keys()
        _require_alike([recorded[run] for run in sorted(staying)], [*made.values()])
    folders = [summary, summary.parents[1], *([record] if staying else [])]
    with _appearing(record) as new:
        _join([(summary, here.keys() - staying), (record, staying)], new)
        _copy_search(summary, record, new)
        _copy_sources(folders, new)
        _write_pages(folders, new)
        names = [file.name for file in new.iterdir() if file.suffix in (".parquet", ".json")]
        write_hashes(new, names)


def _require_finished(summary: Path) -> None:
    if not (summary / "runs.parquet").is_file():
        known = sorted(folder.name for folder in summary.parent.glob("*") if folder.is_dir())
        raise FileNotFoundError(
            f"there is no summary of {summary.name!r} in {summary}: run the experiment first"
            f"{hint(summary.name, known) if known else ''}"
        )
    failed = [f"{run}: {why}" for run, why in failed_runs(summary).items() if why != NOT_RUN]
    if failed:
        raise ValueError(f"{len(failed)} run(s) of {summary.name!r} failed, first {failed[0]}")


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
    """Return what a run has in common with others: owner and name → value."""
    config = json.loads(row["config"])
    skew, scenario = split_setting(row["skew"])
    training = config.get("training", {})
    own = (*_OF_A_RUN, *_OF_A_METHOD)
    division = (row["dataset"], str(row["clients"]), skew, str(row["seed"]))
    return {
        (scenario, ""): {k: v for k, v in config.items() if k not in own},
        (scenario, "training"): {k: v for k, v in training.items() if k not in _OWN_TRAINING},
        (scenario, row["method"], ""): {name: config.get(name) for name in _OF_A_METHOD},
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
    """Copy what a search found: here, or else for the former record, which may have no run."""
    tuned = summary.parents[1] / f"search/{summary.name}.tuned.yaml"
    _copy_first([summary / "search.json", former / "search.json"], record / "search.json")
    _copy_first([tuned, former / "tuned.yaml"], record / "tuned.yaml")


def _copy_sources(folders: Sequence[Path], record: Path) -> None:
    """Copy partitions of the lowest seed, if there are any, and the facts of backbones."""
    rows = [*_rows_of(record).values()]
    seed = min(row["seed"] for row in rows)
    places = [{**row, "skew": split_setting(row["skew"])[0], "seed": seed} for row in rows]
    configs = [json.loads(row["config"]) for row in rows if row["status"] == "ok"]
    for name in sorted({f"partitions/{DIVISION.format_map(place)}" for place in places}):
        _copy_first([folder / name for folder in folders], record / name)
    for backbone in {config.get("backbone") for config in configs} - {None}:
        name = f"backbones/{backbone}.json"
        if not _copy_first([folder / name for folder in folders], record / name):
            raise FileNotFoundError(f"{folders[1] / name} is missing; pretrain the backbone anew")


def _copy_first(files: Iterable[Path], target: Path) -> bool:
    """Copy the first of some files that is there, and return whether one is."""
    for file in filter(Path.is_file, files):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
        return True
    return False


def _write_pages(folders: Sequence[Path], record: Path) -> None:
    """Write the tables that are shown, and pages.json with those pages that have data."""
    # Here, not above: of what tables and figures need, gathering runs needs nothing.
    from fedsdg.next_analysis.figures import sidecars
    from fedsdg.next_analysis.records import Record
    from fedsdg.next_analysis.render import add_pages, shown, write_shown
    from fedsdg.next_analysis.tables import table

    opened = Record(record)
    said = [Record(folder) for folder in folders if (folder / "pages.json").is_file()]
    pages = [shown(one) for one in said or [opened]]
    tables = dict.fromkeys(name for names, _ in pages for name in names)
    figures = dict.fromkeys(name for _, names in pages for name in names)
    add_pages(
        record,
        [name for name in tables if len(table(name, opened).numbers)],
        [name for name in figures if sidecars(name, opened)],
    )
    write_shown(opened, record, None, tex=False)
