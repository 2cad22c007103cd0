"""The files of a finished run: tables, `result.json`, `provenance.json`, models."""

import math
import resource
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsdg import files
from fedsdg.config.run import Run
from fedsdg.experiment.gpu import gpu_facts
from fedsdg.experiment.material import Material
from fedsdg.experiment.saved_models import ModelSaver, write_models
from fedsdg.experiment.store import MODELS, RESULT
from fedsdg.experiment.training import Records, Training
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


def write_tables(folder: Path, records: Records) -> None:
    """Write the tables of a run, as far as it came.

    Args:
        folder: The folder of the files.
        records: The rows of the tables.
    """
    for name, rows, schema, further in (
        ("rounds", records.rounds, ROUNDS_SCHEMA, more("rounds", records.columns)),
        ("clients", records.clients, CLIENTS_SCHEMA, more("clients", records.columns)),
        ("timings", records.timings, TIMINGS_SCHEMA, None),
    ):
        write_parquet(folder / f"{name}.parquet", rows, schema, further)


def write_run(folder: Path, run: Run, material: Material, key: str, training: Training) -> None:
    """Write the files of a finished run.

    Args:
        folder: The folder of the files.
        run: The run.
        material: Images and backbone.
        key: The run's address.
        training: The run after its last round.
    """
    write_tables(folder, training.records)
    for observer in training.setup.observers:
        if isinstance(observer, ModelSaver):
            facts = {**material.model_facts(run.backbone), "address": key}
            facts |= {"save": run.training.save, "precision": run.training.precision}
            write_models(folder / MODELS, training.setup, observer.state, facts)
    files.write_json(folder / RESULT, _outcome(run, training))
    files.write_json(folder / "provenance.json", _provenance(run, material, key, training))


def _outcome(run: Run, training: Training) -> dict[str, Any]:
    """Return what a run has come to."""
    rounds = training.records.rounds
    evaluated = [row for row in rounds if row["evaluated"]]
    selected = selected_round(training.records.clients)
    layout = training.setup.layout
    return {
        "last": _metrics(evaluated[-1]),
        "selected": _metrics(next(row for row in evaluated if row["round"] == selected)),
        "quarter": last_quarter(rounds),
        "rounds": run.federation.rounds,
        "bytes_up": sum(row["bytes_up"] for row in rounds),
        "bytes_down": sum(row["bytes_down"] for row in rounds),
        "client_storage_bytes": training.store.bytes_per_client,
        "communicated_parameters": layout.d,
        "private_parameters": layout.own_parameters,
        "personal_steps": sum(row["personal_steps"] for row in rounds),
    }


def _provenance(run: Run, material: Material, key: str, training: Training) -> dict[str, Any]:
    """Return where, with what and at what cost a run was made."""
    taken = material.backbone.facts.get("taken_from") if material.backbone else None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kilobytes = 1024 if sys.platform != "darwin" else 1024**2  # macOS counts bytes
    device = material.samples.images.device
    return {
        **files.provenance(),
        "device": str(device),
        **gpu_facts(device),
        "threads": run.training.threads,
        **({"data": dict(material.data.facts)} if material.data.facts else {}),
        **({"backbone_taken_from": taken} if taken else {}),
        "address": key,
        **training.facts(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "peak_rss_mb": peak / kilobytes,
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
