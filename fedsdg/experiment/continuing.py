"""Finished runs of a committed record count as done: they are put back into the store.

A long grid is completed in pieces, on several days and machines. A run of the record is taken where
its address is the one that is wanted: config, partition, backbone and the code that it can reach,
or code that computes the same (``restamping``). Who wants to see that the record can be computed
again does not ask for this.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedsdg import files
from fedsdg.analysis.record import read_origins, read_stamps
from fedsdg.analysis.summarise import Run, read_summary
from fedsdg.experiment.store import Address, keep_or_reuse, together_key
from fedsdg.files.places import RECORD, filled
from fedsdg.files.records import (
    CLIENTS_SCHEMA,
    ROUNDS_SCHEMA,
    TIMINGS_SCHEMA,
    more,
    write_parquet,
)

_ADDRESS = tuple(entry.name for entry in fields(Address))
#: What ``result.json`` says of a run beside its outcome, which alone is in the store.
_NAMES = ("experiment", "dataset", "clients", "skew", "scenario", "method", "label", "seed")


def is_asked_for() -> bool:
    """Whether the environment says that records count: FEDSDG_CONTINUE=1."""
    return os.environ.get("FEDSDG_CONTINUE", "") not in ("", "0")


def take_from_record(experiment: str, wanted: Iterable[Address], store: Path) -> int:
    """Put those of the runs that the record of an experiment holds into the store; how many.

    Nothing where there is no record. Raises ``ValueError`` where it is damaged.
    """
    record = filled(RECORD, experiment=experiment)
    if not (record / "runs.parquet").is_file():
        return 0
    addresses = {astuple(one): one for one in wanted}
    taken = 0
    runs = _runs_of(record, (record / "runs.parquet").stat().st_mtime_ns)
    later = read_stamps(record, {run.folder for run in runs})
    for run in runs:
        known = map(astuple, _addresses_of(run, later))
        one = next((addresses[key] for key in known if key in addresses), None)
        if one is not None and _is_whole(run):
            origins = read_origins(record, [run.folder])
            origin: Mapping[str, Any] = origins[0] if origins else {}
            _put_back(run, origin, record, store, one)
            taken += 1
    return taken


def _addresses_of(run: Run, later: Iterable[Mapping[str, Any]]) -> Iterator[Address]:
    """The address that a run was recorded under, and those that it was given later."""
    recorded = Address(*(run.row[name] for name in _ADDRESS))
    yield recorded
    for entry in later:
        for source, folders in entry["sources"].items():
            if run.folder in folders:
                yield replace(recorded, source_hash=source)


@lru_cache(maxsize=1)
def _runs_of(record: Path, _: int) -> list[Run]:
    """The runs of a record, read once for all seeds of a cell; the time tells versions apart."""
    return read_summary(record)


def _is_whole(run: Run) -> bool:
    """Whether the record holds all files of a run: a trace and models it never holds."""
    if run.row["status"] != "ok" or run.row["result"] is None:
        return False
    config = json.loads(run.row["config"])
    return not (config["federation"].get("trace_every") or config["training"].get("save"))


def _put_back(
    run: Run, origin: Mapping[str, Any], record: Path, store: Path, address: Address
) -> None:
    seeds = origin.get("seeds_together", [run.row["seed"]])
    facts = {name: value for name, value in origin.items() if name not in ("runs", "first", "last")}
    for name in ("wall_seconds", "peak_rss_mb"):
        facts[name] = run.table("timings")[name][0].as_py() if len(run.table("timings")) else None

    def write(place: Path) -> None:
        for name, schema, others in (
            ("rounds", ROUNDS_SCHEMA, more("rounds")),
            ("clients", CLIENTS_SCHEMA, more("clients")),
        ):
            rows = run.table(name).to_pylist()
            write_parquet(place / f"{name}.parquet", rows, schema, others)
        write_parquet(place / "timings.parquet", _timings(run), TIMINGS_SCHEMA)
        files.write_json(place / "result.json", _outcome(run))
        said = {**facts, "address": address.key, "taken_from": record.as_posix()}
        files.write_json(place / "provenance.json", said)

    keep_or_reuse(store, together_key(address.key, seeds), write)


def _timings(run: Run) -> list[dict[str, Any]]:
    names: list[str] = TIMINGS_SCHEMA.names
    table: pa.Table = run.table("timings").select(names)
    return [row for row in table.to_pylist() if row["round"] is not None]


def _outcome(run: Run) -> dict[str, Any]:
    said = json.loads(run.row["result"])
    aside = {*_NAMES, *_ADDRESS, "status", "error"}
    return {name: value for name, value in said.items() if name not in aside}
