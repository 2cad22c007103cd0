"""The runs of a record: read back, joined with runs computed here, and where they were made.

A grid may be completed in pieces, on several days and machines. provenance.json of a record is a
list of entries, one for each machine and commit, each with the ``runs`` that it covers: their
folders below ``results/runs/{experiment}``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedsdg.analysis.names import NOT_RUN
from fedsdg.analysis.summarise import IDENTITY_SCHEMA, LATER_SCHEMA, RUNS_SCHEMA, TABLES, Run
from fedsdg.files import canonical_json, differences, read_json
from fedsdg.files.places import run_below, split_setting
from fedsdg.files.records import more, read_parquet

ORIGINS = "provenance.json"
#: The addresses that runs of a record were given later (``fedsdg.experiment.restamping``).
STAMPS = "restamped.json"

#: The facts that tell entries of ``ORIGINS`` apart. The rest of a run's provenance concerns that
#: run alone.
_FACTS = (
    "commit",
    "dirty",
    "python",
    "versions",
    "platform",
    "machine",
    "processor",
    "host",
    "cpu_count",
    "device",
    "threads",
    "seeds_together",
)

#: What of a config all runs of a method share, and in what runs of one experiment may differ.
_OF_A_METHOD = ("method", "parameters", "plugin", "training")
_OF_A_RUN = {"dataset", "skew", "seed", *_OF_A_METHOD}

#: Type of a method -> the keys of ``training`` that it may set for itself.
OwnTraining = Callable[[str], frozenset[str]]
Origin = dict[str, Any]


def read_summary(summary_dir: str | Path) -> list[Run]:
    """Read the runs that ``write_summary`` wrote; writing them gives the same files again.

    Raises:
        ValueError: A file is damaged, missing, or does not fit the others.
    """
    folder = Path(summary_dir)
    columns = (*RUNS_SCHEMA.names, *LATER_SCHEMA.names)
    rows = _readable(folder / "runs.parquet").to_pylist()
    rows = {run_below(row): {name: row.get(name) for name in columns} for row in rows}
    parts = {name: _by_run(folder / f"{name}.parquet", name, rows.keys()) for name in TABLES}
    runs = []
    for below, row in rows.items():
        if row["status"] == "ok" and below not in parts["rounds"]:
            raise _damaged(folder / "rounds.parquet", f"it has no rows of the run {below}")
        tables = {name: parts[name].get(below, TABLES[name].empty_table()) for name in TABLES}
        runs.append(_recorded(row, tables))
    return runs


def _recorded(row: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> Run:
    return Run(row, lambda name: tables[name].schema, lambda name: tables[name])


def _readable(file: Path) -> pa.Table:
    """A file of a summary that has at least the identity columns."""
    try:
        table = read_parquet(file)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(file, str(error).splitlines()[0]) from error
    if lacking := set(IDENTITY_SCHEMA.names) - set(table.column_names):
        raise _damaged(file, f"it lacks the column {min(lacking)!r}")
    return table


def _damaged(file: Path, why: str) -> ValueError:
    return ValueError(
        f"{file} is damaged ({why}); restore it from the repository, or make it anew from runs "
        "with 'fedsdg record' without --merge"
    )


def _by_run(file: Path, name: str, known: Collection[str]) -> dict[str, pa.Table]:
    """Folder of a run -> its rows, with the columns that the run itself recorded, in its order."""
    table, identity = _readable(file), IDENTITY_SCHEMA.names
    extra = [] if name == "timings" else more("rounds" if name == "rounds" else "clients").names
    order = {column: i for i, column in enumerate([*TABLES[name].names, *extra])}
    columns = [column for column in table.column_names if column not in identity]
    columns.sort(key=lambda column: order.get(column, len(order)))
    runs: dict[str, pa.Table] = {}
    for values, rows in table.select(identity).to_pandas().groupby(identity).indices.items():
        below = run_below(dict(zip(identity, values, strict=True)))
        if below not in known:
            raise _damaged(file, f"its run {below} is none of runs.parquet")
        if rows[-1] - rows[0] >= len(rows):
            raise _damaged(file, f"the rows of the run {below} do not stand together")
        part = table.slice(rows[0], len(rows))
        # Columns that only other runs have are null throughout.
        usual = TABLES[name].names
        has = [c for c in columns if c in usual or part[c].null_count < len(part)]
        runs[below] = part.select(has)
    return runs


def merged(
    recorded: Collection[Run],
    here: Collection[Run],
    own_training: OwnTraining,
    stamps: Iterable[Mapping[str, Any]] = (),
) -> list[Run]:
    """Join a record and runs computed here.

    Args:
        recorded: The runs of the record.
        here: The runs computed here. Each replaces the recorded one of the same folder, except a
            run that was not run here.
        own_training: The keys of ``training`` that a type of method may set for itself.
        stamps: The addresses that recorded runs were given later (``read_stamps``).

    Returns:
        The runs of both.

    Raises:
        ValueError: Recorded runs that stay do not fit those computed here. They have other settings
            that all runs of an experiment share, the same method with other settings or code,
            another partition of the same data, or another backbone.
    """
    done = {run.folder: run for run in here if run.row["status"] != NOT_RUN}
    both = {run.folder: run for run in (*here, *recorded)} | done
    staying = [run for run in both.values() if run.folder not in done]
    kept = [run for run in staying if run.row["status"] != NOT_RUN]
    codes = {run.row["source_hash"] for run in done.values()}
    # Folder of a recorded run -> the code of runs computed here that computes the same.
    alike = {
        folder: source
        for entry in stamps
        for source in codes & entry["sources"].keys()
        for folder in entry["sources"][source]
    }
    _require_alike(kept, list(done.values()), own_training, alike)
    return list(both.values())


def _require_alike(
    kept: list[Run], here: list[Run], own_training: OwnTraining, alike: Mapping[str, str]
) -> None:
    configs = {run.folder: json.loads(run.row["config"] or "{}") for run in (*kept, *here)}
    training = {name for config in configs.values() for name in config.get("training", {})}

    def facts(run: Run) -> Iterator[tuple[Any, str, Any]]:
        """(owner, name, value) of every fact of which a record may hold one value only."""
        row, config = run.row, configs[run.folder]
        skew, scenario = split_setting(row["skew"])
        yield scenario, "", {name: config[name] for name in config.keys() - _OF_A_RUN}
        for name in sorted(training - own_training(row["type"])):
            yield scenario, f"training.{name}", config.get("training", {}).get(name)
        method = (scenario, row["method"])
        yield method, "", {name: config.get(name) for name in _OF_A_METHOD}
        yield method, "source_hash", alike.get(run.folder, row["source_hash"])
        yield config.get("backbone"), "backbone_hash", row["backbone_hash"]
        division = (row["dataset"], row["clients"], skew, row["seed"])
        yield division, "partition_hash", row["partition_hash"]

    recorded: dict[tuple[Any, str], tuple[Any, Run]] = {}
    for run in kept:
        for owner, name, value in facts(run):
            recorded.setdefault((owner, name), (value, run))
    for run in here:
        for owner, name, value in facts(run):
            there, other = recorded.get((owner, name), (value, run))
            for difference in differences(there, value, name):
                raise ValueError(
                    f"the runs computed here cannot join the record of {run.row['experiment']!r}: "
                    f"{difference} (its run {other.folder}, and {run.folder} of those here); "
                    "record without --merge to replace it"
                )


def origins_of(folders: Iterable[str], runs_dir: Path) -> list[Origin]:
    """Return the entries of runs computed here, as far as their provenance says anything.

    Args:
        folders: The folders of the runs, below ``runs_dir``.
        runs_dir: ``results/runs/{experiment}``.
    """
    origins = []
    for folder in folders:
        file = runs_dir / folder / ORIGINS
        if file.is_file():
            facts = read_json(file)
            days = {"first": facts.get("started"), "last": facts.get("finished")}
            origins.append({**facts, **days, "runs": [folder]})
    return joined(origins)


def read_origins(record: Path, folders: Iterable[str]) -> list[Origin]:
    """Return the entries of a record for some of its runs.

    An older record has one entry, that of its first run, which stands for all of them.

    Args:
        record: The folder of the record.
        folders: The folders of the runs.
    """
    file, wanted = record / ORIGINS, sorted(folders)
    content = read_json(file) if file.is_file() else []
    if isinstance(content, Mapping):
        content = [{**_facts(content), "runs": wanted}]
    entries = [
        {**entry, "runs": [run for run in entry["runs"] if run in wanted]} for entry in content
    ]
    return [entry for entry in entries if entry["runs"]]


def joined(origins: Iterable[Origin]) -> list[Origin]:
    """Join entries whose facts are equal, in the order in which they come."""
    entries: dict[str, Origin] = {}
    for origin in origins:
        facts = _facts(origin)
        entry = entries.setdefault(canonical_json(facts), {**facts, "runs": []})
        entry["runs"] += origin["runs"]
        for name, choose in (("first", min), ("last", max)):
            if origin.get(name) is not None:
                entry[name] = choose(origin[name], entry.get(name, origin[name]))
    return list(entries.values())


def _facts(content: Mapping[str, Any]) -> Origin:
    return {name: content[name] for name in _FACTS if name in content}


def read_stamps(record: Path, folders: Collection[str]) -> list[dict[str, Any]]:
    """Return the addresses that runs of a record were given later.

    Args:
        record: The folder of the record.
        folders: The folders of the runs; the others are left out.

    Returns:
        Entries of ``old`` and ``new``, the commits; ``gate``, what shows that both compute alike;
        ``sources``: hash of the code that a run can reach at ``new`` -> folders of runs.
    """
    file = record / STAMPS
    entries: list[dict[str, Any]] = read_json(file) if file.is_file() else []
    for entry in entries:
        staying = {
            source: [run for run in runs if run in folders]
            for source, runs in entry["sources"].items()
        }
        entry["sources"] = {source: runs for source, runs in staying.items() if runs}
    return [entry for entry in entries if entry["sources"]]
