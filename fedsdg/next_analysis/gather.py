"""From folders of runs to the record of an experiment: runs, rounds, clients and timings.

A run that failed or was not run is a row of runs.parquet with its error, never a missing row. The
same runs give the same bytes; times stand apart.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from fedsdg.next_analysis.names import method_order, natural_order
from fedsdg.next_analysis.records import _IDENTITY

TABLES = ("rounds", "clients", "timings")
#: Facts of a run's provenance that are kept; the others concern that run alone.
_FACTS = ("commit", "dirty", "python", "versions", "platform", "processor", "device", "threads")
#: Sections of a config in which runs of one experiment may differ.
_OWN = ("dataset", "skew", "seed", "method", "parameters", "training")
_REPORTED = ("last", "selected", "quarter")
_ROWS_OF_A_GROUP = 100_000


def identity(folder: Path) -> dict[str, Any]:
    """Return the identity of a run from its folder: …/digits/clients~20/iid@half/fedsdg/seed~3."""
    dataset, clients, skew, method, seed = folder.parts[-5:]
    numbers = {"clients": int(clients.partition("~")[2]), "seed": int(seed.partition("~")[2])}
    return {
        "experiment": folder.parts[-6],
        "dataset": dataset,
        "skew": skew,
        "method": method,
        **numbers,
    }


def order(row: dict[str, Any]) -> tuple[Any, ...]:
    """Sort runs by data set, skew, method and seed."""
    return (
        row["dataset"],
        row["clients"],
        natural_order(row["skew"]),
        method_order(row["method"]),
        row["seed"],
    )


def run_row(folder: Path) -> dict[str, Any]:
    """Return the row of runs.parquet of a run."""
    file = folder / "result.json"
    if not file.is_file():
        error = "the run left no result" if folder.exists() else None
        return {**identity(folder), "status": "failed" if error else "not run", "error": error}
    result = json.loads(file.read_text())
    config = json.dumps(result.pop("config"), sort_keys=True, separators=(",", ":"))
    reported = {f"{at}_{k}": v for at in _REPORTED for k, v in (result.pop(at, None) or {}).items()}
    return {**result, **reported, "config": config, "type": result["method"], **identity(folder)}


def summarise(folders: Iterable[Path], output: Path) -> None:
    """Write the tables of some runs.

    Args:
        folders: The folders of all runs that the config asks for.
        output: The folder of the summary or record.
    """
    rows = {folder: run_row(folder) for folder in folders}
    ordered = sorted(rows, key=lambda folder: order(rows[folder]))
    if not ordered:
        raise FileNotFoundError("there is no run to summarise; train first")
    output.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame([rows[folder] for folder in ordered])
    frame = frame[[*_IDENTITY, *sorted(frame.columns.difference(_IDENTITY))]]
    frame.to_parquet(output / "runs.parquet", index=False)
    for table in TABLES:
        files = [(f, f / f"{table}.parquet") for f in ordered if (f / f"{table}.parquet").is_file()]
        _write(output / f"{table}.parquet", [(rows[folder], file) for folder, file in files])
    origins = _origins(folder for folder in ordered if rows[folder]["status"] == "ok")
    (output / "provenance.json").write_text(json.dumps(origins, indent=1, sort_keys=True) + "\n")


def _write(path: Path, parts: Sequence[tuple[dict[str, Any], Path]]) -> None:
    """Join the tables of runs, a few row groups in memory at a time."""
    fields = {field.name: field.type for _, file in parts for field in pq.read_schema(file)}
    if path.stem == "timings":
        fields |= dict.fromkeys(("wall_seconds", "peak_rss_mb"), pa.float64())
    kinds = {"clients": pa.int64(), "seed": pa.int64()}
    schema = pa.schema(
        [(name, kinds.get(name, pa.string())) for name in _IDENTITY] + [*fields.items()]
    )
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for group in _groups(_named(row, file, schema) for row, file in parts):
            writer.write_table(pa.concat_tables(group))


def _named(row: dict[str, Any], file: Path, schema: pa.Schema) -> pa.Table:
    table = pq.read_table(file)
    facts = {**row, **_measured(file)}
    columns = [
        table[f.name].cast(f.type)
        if f.name in table.column_names
        else pa.repeat(pa.scalar(facts.get(f.name), f.type), len(table))
        for f in schema
    ]
    return pa.table(columns, schema=schema)


def _measured(file: Path) -> dict[str, float | None]:
    """Return what the provenance of a run says of its time and memory, for its timings."""
    if file.stem != "timings":
        return {}
    facts = json.loads((file.parent / "provenance.json").read_text())
    return {name: facts.get(name) for name in ("wall_seconds", "peak_rss_mb")}


def _groups(tables: Iterable[pa.Table]) -> Iterator[list[pa.Table]]:
    group: list[pa.Table] = []
    for table in tables:
        group.append(table)
        if sum(map(len, group)) >= _ROWS_OF_A_GROUP:
            yield group
            group = []
    if group:
        yield group


def _origins(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """Return commits and machines, each with the folders of its runs."""
    entries: dict[str, dict[str, Any]] = {}
    for folder in folders:
        facts = json.loads((folder / "provenance.json").read_text())
        kept = {name: facts.get(name) for name in _FACTS}
        entry = entries.setdefault(
            json.dumps(kept, sort_keys=True), {**kept, "runs": [], "first": facts["started"]}
        )
        entry["runs"].append("/".join(folder.parts[-5:]))
        entry["first"], entry["last"] = min(entry["first"], facts["started"]), facts["finished"]
    return list(entries.values())


def keep_record(summary: Path, record: Path) -> None:
    """Put the runs of a summary into a record; they replace runs of the same identity.

    Raises:
        ValueError: Runs failed, or runs that stay have other shared settings, or other code for
            the same method.
    """
    here = pd.read_parquet(summary / "runs.parquet")
    if (failed := here[here["status"] == "failed"]).size:
        raise ValueError(f"{len(failed)} runs failed, the first with {failed['error'].iloc[0]!r}")
    here = here[here["status"] == "ok"]
    merged = record.with_name(f".{record.name}.{os.getpid()}")
    merged.mkdir(parents=True)
    try:
        staying = _staying(record, here)
        _require_alike(here, staying)
        for table in ("runs", *TABLES):
            parts = [
                pd.read_parquet(f / f"{table}.parquet")
                for f in (summary, record)
                if (f / f"{table}.parquet").is_file()
            ]
            kept = parts[1].merge(staying[_IDENTITY], on=_IDENTITY) if len(parts) > 1 else None
            joined = pd.concat([parts[0], *([] if kept is None else [kept])], ignore_index=True)
            keys = joined[_IDENTITY].apply(lambda row: order(row.to_dict()), axis=1)
            joined.iloc[keys.argsort(kind="stable")].to_parquet(
                merged / f"{table}.parquet", index=False
            )
        entries = [
            e
            for f in (summary, record)
            if (f / "provenance.json").is_file()
            for e in json.loads((f / "provenance.json").read_text())
        ]
        (merged / "provenance.json").write_text(
            json.dumps(entries, indent=1, sort_keys=True) + "\n"
        )
        shutil.rmtree(record, ignore_errors=True)
        merged.rename(record)
    finally:
        shutil.rmtree(merged, ignore_errors=True)


def _staying(record: Path, here: pd.DataFrame) -> pd.DataFrame:
    if not (record / "runs.parquet").is_file():
        return here.iloc[:0]
    recorded = pd.read_parquet(record / "runs.parquet")
    both = recorded.merge(here[_IDENTITY], how="left", on=_IDENTITY, indicator=True)
    return both[both.pop("_merge") == "left_only"]


def _require_alike(here: pd.DataFrame, staying: pd.DataFrame) -> None:
    both = pd.concat([here, staying], ignore_index=True)
    configs = [json.loads(text) for text in both["config"]]
    shared = [
        json.dumps({k: v for k, v in c.items() if k not in _OWN}, sort_keys=True) for c in configs
    ]
    for what, by in ((pd.Series(shared), ["skew"]), (both["source_hash"], ["method"])):
        counts = what.groupby([both[name] for name in by]).nunique()
        if (unlike := counts[counts > 1]).size:
            raise ValueError(
                f"runs of {unlike.index[0]} have other settings or code than the record"
            )
