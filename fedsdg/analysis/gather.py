"""From folders of runs to a summary, and from summaries to the committed record of an experiment.

A run that failed or was not run is a row of runs.parquet with its error, never a missing row. The
same runs give the same bytes; times stand apart, in timings.parquet. Rows of thousands of runs do
not fit into memory, so they are read and written a row group at a time.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedsdg.analysis.names import natural_order
from fedsdg.analysis.records import IDENTITY, folders_of, guarded
from fedsdg.errors import hint
from fedsdg.files import (
    appearing,
    canonical_json,
    differences,
    read_json,
    require_unchanged,
    write_hashes,
    write_json,
)
from fedsdg.files.places import RUN_BELOW, run_below
from fedsdg.files.records import ROWS_OF_A_GROUP, read_parquet, rounded, write_tables

#: Files of a record that SHA256SUMS lists; the others are made from them.
LISTED = (".parquet", ".json", ".yaml")
#: Status of a run that nobody has started; the others are "ok" and "failed".
NOT_RUN = "not run"
#: Tables with rows of every run.
TABLES = ("rounds", "clients", "timings")
_IDENTITY = pa.schema(
    [(name, pa.int64() if name in ("clients", "seed") else pa.string()) for name in IDENTITY]
)
#: Columns of timings.parquet that come from the provenance of a run.
_MEASURED = pa.schema([("wall_seconds", pa.float64())])
#: Texts in runs.parquet, which every record has.
_TEXTS = (*("type", "status", "error", "config"), *("address", "partition_hash", "backbone_hash"))
#: What tells entries of provenance.json apart: code, machine, and how it was used.
_FACTS = (
    *("commit", "dirty", "python", "versions", "platform", "machine", "processor", "host"),
    *("cpu_count", "device", "threads"),
)
#: Keys of a config that are a run's own, those that all runs of a method share, and keys of
#: ``training`` that a method may have for itself.
_OF_A_RUN = ("dataset", "skew", "seed", "partition_seed")
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
    rows = {folder: _row_of(folder) for folder in sorted(folders)}
    if not rows:
        raise FileNotFoundError("there is no run to summarise; train first")
    experiments = sorted({row["experiment"] for row in rows.values()})
    if len(experiments) > 1:
        raise ValueError(
            f"the runs for {output} are of the experiments {', '.join(experiments)}; summarise "
            "one alone"
        )
    _write_runs(output, [*rows.values()], methods)
    made = {folder: _provenance(folder, row) for folder, row in rows.items()}
    write_json(output / "provenance.json", _joined(made.values()))
    for name in TABLES:
        added = pa.schema([*_IDENTITY, *(_MEASURED if name == "timings" else ())])
        files = [folder / f"{name}.parquet" for folder in rows]
        files = [file for file in files if file.is_file()]
        schemas = [added, *(guarded(file, pq.read_schema) for file in files)]
        tables = (_with(file, {**made[file.parent], **rows[file.parent]}, added) for file in files)
        _write_rows(output / f"{name}.parquet", schemas, tables)
    (output / "search.json").unlink(missing_ok=True)
    if search is not None:
        write_json(output / "search.json", read_json(search))


def failed_runs(summary: Path) -> dict[str, str]:
    """Return folder below results/runs/{experiment} → error of the runs that did not succeed.

    The error of a run that was not run is ``NOT_RUN``.
    """
    rows = _rows_of(summary).items()
    return {run: row["error"] or row["status"] for run, row in rows if row["status"] != "ok"}


def _row_of(folder: Path) -> dict[str, Any]:
    """Return a run's row of runs.parquet: failed without a result, not run without a folder."""
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
    row["config"] = canonical_json(result["config"]) if "config" in result else None
    return row


def _provenance(folder: Path, row: Row) -> dict[str, Any]:
    """Return the entry of provenance.json of one run, with all that its folder says."""
    file = folder / "provenance.json"
    facts = read_json(file) if file.is_file() else {}
    days = {"first": facts.get("started"), "last": facts.get("finished")}
    return {**facts, **days, "runs": [run_below(row)] if row["status"] == "ok" else []}


def _with(file: Path, facts: Mapping[str, Any], added: pa.Schema) -> pa.Table:
    """Return a table of a run with columns of one value each, rounded but for rounds."""
    table = guarded(file, read_parquet)
    table = table if file.stem == "rounds" else rounded(table)
    for field in added:
        value = pa.scalar(facts.get(field.name), field.type)
        table = table.append_column(field, pa.repeat(value, len(table)))
    return table


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


def _write_runs(output: Path, rows: Sequence[Row], methods: Methods) -> None:
    """Write runs.parquet, of identity, texts, and what else some run has; and methods.json."""

    def order(row: Row) -> tuple[Any, ...]:
        method = methods.get(row["method"], {}).get("order", np.inf), row["method"]
        return row["dataset"], row["clients"], natural_order(row["skew"]), method, row["seed"]

    rows = sorted(rows, key=order)
    first = [*IDENTITY, *_TEXTS]
    others = {name for row in rows for name in row}.difference(first)
    columns = {n: pa.array([row.get(n) for row in rows]) for n in (*first, *sorted(others))}
    columns |= {name: columns[name].cast(pa.string()) for name in _TEXTS}
    table = pa.table({n: c for n, c in columns.items() if n in first or c.null_count < len(c)})
    write_tables(output / "runs.parquet", [table], table.schema)
    labels = {row["method"] for row in rows}
    write_json(output / "methods.json", {one: dict(methods[one]) for one in labels & {*methods}})


def _write_rows(file: Path, schemas: Iterable[pa.Schema], tables: Iterable[pa.Table]) -> None:
    """Write tables one behind the other, a row group of them in memory at a time.

    Columns are those of all schemas, null where a table lacks them.
    """
    found = pa.unify_schemas([_IDENTITY, *schemas], promote_options="permissive")
    others = sorted({*found.names}.difference(IDENTITY))
    schema = pa.schema([*_IDENTITY, *(found.field(name) for name in others)])

    def groups() -> Iterator[pa.Table]:
        waiting = [schema.empty_table()]
        for table in tables:
            waiting.append(table)
            if sum(map(len, waiting)) >= ROWS_OF_A_GROUP:
                yield joined(waiting)
                waiting = [schema.empty_table()]
        yield joined(waiting)

    def joined(waiting: Sequence[pa.Table]) -> pa.Table:
        return pa.concat_tables(waiting, promote_options="permissive").combine_chunks()

    write_tables(file, groups(), schema)


# --- summaries and records → one folder ----------------------------------------------------------


def join(parts: Sequence[tuple[Path, Collection[str]]], output: Path) -> None:
    """Put chosen runs of summaries or records together in one folder.

    Args:
        parts: Folder of a summary or record, and which of its runs are wanted, as their folders
            below results/runs/{experiment}; no run twice.
        output: The folder of what ``summarise`` writes.

    Raises:
        FileNotFoundError: A folder lacks a file.
        ValueError: A file is damaged.
    """
    parts = [(folder, wanted) for folder, wanted in parts if wanted]
    rows: list[Row] = []
    origins: list[dict[str, Any]] = []
    methods: dict[str, Any] = {}
    for folder, wanted in parts:
        rows += [row for run, row in _rows_of(folder).items() if run in wanted]
        for origin in read_json(folder / "provenance.json"):
            origins.append({**origin, "runs": [run for run in origin["runs"] if run in wanted]})
        methods = {**read_json(folder / "methods.json"), **methods}
    _write_runs(output, rows, methods)
    write_json(output / "provenance.json", _joined(origins))
    for name in TABLES:
        files = {folder / f"{name}.parquet": wanted for folder, wanted in parts}
        schemas = [guarded(file, pq.read_schema) for file in files]
        tables = (rows for file, wanted in files.items() for rows in _chosen(file, wanted))
        _write_rows(output / f"{name}.parquet", schemas, tables)


def _chosen(file: Path, wanted: Collection[str]) -> Iterator[pa.Table]:
    """Yield the rows of these runs in a table, row group by row group."""
    require_unchanged(file)
    parquet = guarded(file, pq.ParquetFile)
    for i in range(parquet.num_row_groups):
        rows = parquet.read_row_group(i)
        yield rows.filter(pc.is_in(folders_of(rows), pa.array(wanted)))


def _rows_of(folder: Path) -> dict[str, Row]:
    """Return the rows of runs.parquet by the folder of the run."""
    table = guarded(folder / "runs.parquet", read_parquet)
    return dict(zip(folders_of(table).to_pylist(), table.to_pylist(), strict=True))


# --- summary → record ----------------------------------------------------------------------------


def keep_record(
    summary: Path, record: Path, *, merge: bool = False, without: Collection[str] = ()
) -> None:
    """Write the record of an experiment anew; the folder appears whole or not at all.

    It holds what the summary does; the partitions of the lowest seed, the facts of backbones and
    the tuned values; every table as CSV and Markdown; pages.json, which names its tables and the
    figures for which it has data; and the hashes of its data.

    Args:
        summary: The folder of a summary, results/summary/{experiment}.
        record: The folder of the record.
        merge: Keep the runs of the record that were not made here.
        without: Of these, runs that do not stay.

    Raises:
        FileNotFoundError: There is no summary, or the facts of a backbone are missing.
        ValueError: A run failed, a file is damaged, or runs that stay do not fit those made here.
    """
    _require_finished(summary)
    here = _rows_of(summary)
    with appearing(record) as new:  # It brings a record back whose replacement was killed.
        staying: Collection[str] = ()
        # A search may have left its values in the folder before the first runs are recorded.
        if merge and (record / "runs.parquet").is_file():
            recorded = _rows_of(record)
            made = {run: row for run, row in here.items() if row["status"] == "ok"}
            staying = recorded.keys() - made.keys() - {*without}
            _require_alike([recorded[run] for run in sorted(staying)], [*made.values()])
        join([(summary, here.keys() - staying), (record, staying)], new)
        _copy_search(summary, record, new)
        _copy_sources([summary, record] if staying else [summary], new)
        _write_pages(new)
        write_hashes(new, [file.name for file in new.iterdir() if file.suffix in LISTED])


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
    skew, _, scenario = row["skew"].partition("@")
    training = config.get("training", {})
    own = (*_OF_A_RUN, *_OF_A_METHOD)
    drawn = str(config.get("partition_seed", row["seed"]))
    division = (row["dataset"], str(row["clients"]), skew, drawn)
    return {
        (scenario, ""): {k: v for k, v in config.items() if k not in own},
        (scenario, "training"): {k: v for k, v in training.items() if k not in _OWN_TRAINING},
        (scenario, row["method"], ""): {name: config.get(name) for name in _OF_A_METHOD},
        (str(config.get("backbone")), "backbone_hash"): row["backbone_hash"],
        (*division, "partition_hash"): row["partition_hash"],
    }


def _copy_search(summary: Path, former: Path, record: Path) -> None:
    """Copy what a search found, and which pages are shown: here, or else for the former record."""
    tuned = summary.parents[1] / f"search/{summary.name}.tuned.yaml"
    _copy_first(record / "tuned.yaml", tuned, former / "tuned.yaml")
    for name in ("search.json", "pages.json"):
        _copy_first(record / name, summary / name, former / name)


def _copy_sources(parts: Sequence[Path], record: Path) -> None:
    """Copy the partitions of the lowest seed, if there are any, and the facts of backbones."""
    for folder in [part / "partitions" for part in parts if (part / "partitions").is_dir()]:
        shutil.copytree(folder, record / "partitions", dirs_exist_ok=True)
    folders = [parts[0].parents[1], *parts[1:]]
    done = [row for row in _rows_of(record).values() if row["status"] == "ok"]
    for backbone in {json.loads(row["config"]).get("backbone") for row in done} - {None}:
        name = f"backbones/{backbone}.json"
        if not _copy_first(record / name, *(folder / name for folder in folders)):
            raise FileNotFoundError(f"{folders[0] / name} is missing; pretrain the backbone anew")


def _copy_first(target: Path, *sources: Path) -> bool:
    """Copy the first of some files that is there, and return whether one is."""
    source = next(filter(Path.is_file, sources), None)
    if source is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    return source is not None


def _write_pages(record: Path) -> None:
    """Write the tables that are shown, and pages.json with those pages that have data.

    Metrics of plugins stay out of a record, which is verified without them.
    """
    # Here, not above: of what tables and figures need, gathering runs needs nothing.
    from fedsdg.analysis.figures import FIGURES, sidecars
    from fedsdg.analysis.metrics import METRICS
    from fedsdg.analysis.records import Record
    from fedsdg.analysis.render import add_pages, shown, write_shown
    from fedsdg.analysis.tables import TABLES, table

    opened = Record(record)
    tables, figures = shown(opened)
    add_pages(
        record,
        [one for one in tables if one in {*TABLES, *METRICS} and len(table(one, opened).numbers)],
        [one for one in figures if one in {*FIGURES, *METRICS} and sidecars(one, opened)],
    )
    write_shown(opened, record, None, tex=False)
