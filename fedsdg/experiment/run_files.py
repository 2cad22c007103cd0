"""The files of a finished run: tables, ``result.json``, models."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsdg import files
from fedsdg.data.partition import Partition
from fedsdg.experiment.machine.gpu import gpu_facts
from fedsdg.experiment.material import Material
from fedsdg.experiment.reach import source_hash
from fedsdg.experiment.run_config import RunConfig
from fedsdg.experiment.store import (
    MODELS,
    Address,
)
from fedsdg.federation.fingerprint import fingerprint
from fedsdg.federation.records import gate_facts, last_and_selected, last_quarter
from fedsdg.federation.rounds import Federation
from fedsdg.files.columns import columns_of
from fedsdg.files.records import (
    CLIENTS_SCHEMA,
    ROUNDS_SCHEMA,
    TIMINGS_SCHEMA,
    TRACE_SCHEMA,
    more,
    write_parquet,
)


@dataclass(frozen=True)
class Assignment:
    """A run to be done: its partition, where its records go, and what names it in them."""

    run: RunConfig
    partition: Partition
    folder: Path
    identity: Mapping[str, Any]


def address(run: RunConfig, material: Material, partition: Partition) -> Address:
    """Where a finished run is kept."""
    return Address(run.hash, partition.sha256, material.backbone_hash, source_hash(run))


def writer(
    one: Assignment, material: Material, federation: Federation, facts: Mapping[str, Any]
) -> Callable[[Path], None]:
    """What writes the files of a finished run into a folder."""
    return lambda place: _write_run(place, one, material, federation, facts)


def _write_run(
    place: Path,
    one: Assignment,
    material: Material,
    federation: Federation,
    effort: Mapping[str, Any],
) -> None:
    run = one.run
    write_tables(place, federation)
    if federation.saved is not None:
        whose = asdict(address(run, material, one.partition))
        facts = {**_model_facts(run, material), "address": whose}
        federation.saved.write(place / MODELS, facts)
    records = federation.records
    last, selected = last_and_selected(records.rounds)
    files.write_json(
        place / "result.json",
        {
            "last": last,
            "selected": selected,
            "quarter": last_quarter(records.rounds),
            "rounds": run.federation.rounds,
            "bytes_up": sum(row["bytes_up"] for row in records.rounds),
            "bytes_down": sum(row["bytes_down"] for row in records.rounds),
            "client_storage_bytes": records.client_storage_bytes,
            "communicated_parameters": federation.layout.d,
            "private_parameters": federation.layout.own_parameters,
            "degenerate_rounds": int(sum(row["degenerate"] for row in records.rounds)),
            "personal_steps": sum(row["personal_steps"] for row in records.rounds),
            **gate_facts(records.clients, run.training.eta_m),
        },
    )
    taken = material.backbone.facts.get("taken_from") if material.backbone else None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    files.write_json(
        place / "provenance.json",
        {
            **files.provenance(),
            "device": str(material.samples.images.device),
            **gpu_facts(material.samples.images.device),
            "threads": run.training.threads,
            **({"data": dict(material.data_facts)} if material.data_facts else {}),
            **({"backbone_taken_from": taken} if taken else {}),
            "address": address(run, material, one.partition).key,
            "state": fingerprint(federation),
            **effort,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            # Kilobytes on Linux, bytes on macOS.
            "peak_rss_mb": peak / (1024 if sys.platform != "darwin" else 1024**2),
        },
    )


def _model_facts(run: RunConfig, material: Material) -> dict[str, Any]:
    """What the models of a run take: images, how many classes, which backbone."""
    pictures, backbone = material.pictures, material.backbone
    brought = ("size", "channels", "fit") if "classes" in material.data_facts else ()
    return {
        "save": run.training.save,
        "precision": run.training.precision,
        "classes": list(material.data_facts.get("classes", ())),
        "stored": {key: material.data_facts[key] for key in brought if key in material.data_facts},
        "images": {
            "size": pictures.size,
            "channels": pictures.channels,
            "mean": list(pictures.mean),
            "std": list(pictures.std),
        },
        "backbone": None if backbone is None else {"name": run.backbone, "sha256": backbone.sha256},
    }


def write_tables(folder: Path, federation: Federation | None) -> None:
    """The tables of a run; empty ones of a run that failed (``federation`` None)."""
    records = federation.records if federation is not None else None
    own = columns_of(federation.rule) if federation is not None else ()
    clients = records.clients if records else []
    if federation is not None and federation.answers is not None:
        clients = federation.answers.beside(clients)
    tables: dict[str, tuple[Any, ...]] = {
        "rounds": (records.rounds if records else [], ROUNDS_SCHEMA, more("rounds", own)),
        "clients": (clients, CLIENTS_SCHEMA, more("clients", own)),
        "timings": (records.timings if records else [], TIMINGS_SCHEMA),
    }
    if records and records.trace:
        tables["trace"] = (records.trace, TRACE_SCHEMA)
    for name, table in tables.items():
        write_parquet(folder / f"{name}.parquet", *table)
