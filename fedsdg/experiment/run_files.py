"""The files of a finished run: tables, `result.json`, models."""

import math
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from fedsdg import files
from fedsdg.data.partition import Partition
from fedsdg.experiment.exports.saved_models import ModelSaver, saved_models
from fedsdg.experiment.fingerprint import fingerprint
from fedsdg.experiment.machine.gpu import gpu_facts
from fedsdg.experiment.material import Material
from fedsdg.experiment.reach import source_hash
from fedsdg.experiment.resuming import Records, ResumableTraining
from fedsdg.experiment.run_config import RunConfig
from fedsdg.experiment.store import MODELS, Address
from fedsdg.federation.accuracy import selected_round
from fedsdg.files.records import (
    CLIENTS_SCHEMA,
    METRICS,
    METRICS_OF_GROUPS,
    ROUNDS_SCHEMA,
    TIMINGS_SCHEMA,
    more,
    write_parquet,
)


def address(run: RunConfig, material: Material, partition: Partition) -> Address:
    """Return where a finished run is kept."""
    return Address(run.hash, partition.sha256, material.backbone_hash, source_hash(run))


def write_run(
    folder: Path,
    run: RunConfig,
    material: Material,
    where: Address,
    trained: ResumableTraining,
) -> None:
    """Write the files of a finished run.

    Args:
        folder: Where they go.
        run: The run.
        material: Images and backbone.
        where: The run's address in the store.
        trained: The run after its last round.
    """
    setup = trained.setup
    records = trained.records
    write_tables(folder, records)
    for observer in setup.observers:
        if isinstance(observer, ModelSaver):
            models = saved_models(setup, observer.state)
            models.write(folder / MODELS, {**_model_facts(run, material), "address": asdict(where)})
    evaluated = [row for row in records.rounds if row["evaluated"]]
    selected = selected_round(records.clients)
    files.write_json(
        folder / "result.json",
        {
            "last": _metrics(evaluated[-1]),
            "selected": _metrics(next(row for row in evaluated if row["round"] == selected)),
            "quarter": last_quarter(records.rounds),
            "rounds": run.federation.rounds,
            "bytes_up": sum(row["bytes_up"] for row in records.rounds),
            "bytes_down": sum(row["bytes_down"] for row in records.rounds),
            "client_storage_bytes": trained.store.bytes_per_client,
            "communicated_parameters": setup.layout.d,
            "private_parameters": setup.layout.own_parameters,
            "degenerate_rounds": int(sum(row["degenerate"] for row in records.rounds)),
            "personal_steps": sum(row["personal_steps"] for row in records.rounds),
            **gate_facts(records.clients, run.training.eta_m),
        },
    )
    taken = material.backbone.facts.get("taken_from") if material.backbone else None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    device = material.samples.images.device
    files.write_json(
        folder / "provenance.json",
        {
            **files.provenance(),
            "device": str(device),
            **gpu_facts(device),
            "threads": run.training.threads,
            **({"data": dict(material.data_facts)} if material.data_facts else {}),
            **({"backbone_taken_from": taken} if taken else {}),
            "address": where.key,
            "state": fingerprint(trained.server, trained.store),
            **trained.facts(),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            # Kilobytes on Linux, bytes on macOS.
            "peak_rss_mb": peak / (1024 if sys.platform != "darwin" else 1024**2),
        },
    )


def write_tables(folder: Path, records: Records) -> None:
    """Write the tables of a run, as far as it came."""
    for name, rows, schema, further in (
        ("rounds", records.rounds, ROUNDS_SCHEMA, more("rounds", records.columns)),
        ("clients", records.clients, CLIENTS_SCHEMA, more("clients", records.columns)),
        ("timings", records.timings, TIMINGS_SCHEMA, None),
    ):
        write_parquet(folder / f"{name}.parquet", rows, schema, further)


def _model_facts(run: RunConfig, material: Material) -> dict[str, Any]:
    """Return what the models of a run take: images, how many classes, which backbone."""
    pictures = material.pictures
    backbone = material.backbone
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


def _metrics(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a round and its metrics; those of groups only if there are any."""
    groups = {name: row[name] for name in METRICS_OF_GROUPS if row.get(name) is not None}
    return {"round": row["round"], **{name: row.get(name) for name in METRICS}, **groups}


def last_quarter(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return means over the evaluations of the last quarter of R rounds, those of rounds > 3R/4.

    Args:
        rounds: The record of all R rounds; the last one is evaluated.

    Returns:
        The mean of each metric, None if it has no value. `evaluations` is how many there are,
        `round` the last of them.
    """
    quarter = [row for row in rounds if row["evaluated"] and 4 * row["round"] > 3 * len(rounds)]
    means: dict[str, Any] = {"round": quarter[-1]["round"]}
    for name in (*METRICS, *METRICS_OF_GROUPS):
        values = [row[name] for row in quarter if row.get(name) is not None]
        if values:
            means[name] = math.fsum(values) / len(values)
    return {**_metrics(means), "evaluations": len(quarter)}


def gate_facts(clients: Sequence[Mapping[str, Any]], eta_m: float) -> dict[str, float]:
    """Return how far gates can have moved in a run, and where they stand in its last evaluation.

    Args:
        clients: The record of clients. Those that were evaluated last count, but not those that
            never train.
        eta_m: The learning rate of gates.

    Returns:
        `gate_travel`: eta_m times the local steps of a median client. `gates_a`, `gates_b`: the
        mean gate over blocks and over the clients that agree (all, if none differs) or differ, if
        they have any. Nothing if no gate is learned.
    """
    evaluated = [row for row in clients if row.get("val_accuracy") is not None]
    last = max((row["round"] for row in evaluated), default=0)
    final = [row for row in evaluated if row["round"] == last and not row.get("held_out")]
    if not any(row.get("gates") for row in final):
        return {}
    found = {"gate_travel": eta_m * float(np.median([row["steps"] for row in final]))}
    for name, differs in (("gates_a", False), ("gates_b", True)):
        gates = [
            math.fsum(row["gates"]) / len(row["gates"])
            for row in final
            if row.get("gates") and bool(row.get("conflicts")) == differs
        ]
        if gates:
            found[name] = math.fsum(gates) / len(gates)
    return found
