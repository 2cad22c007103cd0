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
from fedsdg.files import records as tables


def write_tables(folder: Path, records: Records) -> None:
    """Write the tables of a run, as far as it came.

    Args:
        folder: The folder of the files.
        records: The rows of the tables.
    """
    columns = records.columns
    for name, rows, schema, more in (
        ("rounds", records.rounds, tables.ROUNDS_SCHEMA, tables.more("rounds", columns)),
        ("clients", records.clients, tables.CLIENTS_SCHEMA, tables.more("clients", columns)),
        ("timings", records.timings, tables.TIMINGS_SCHEMA, None),
    ):
        tables.write_parquet(folder / f"{name}.parquet", rows, schema, more)


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
            facts = _model_facts(run, material) | {"address": key}
            write_models(folder / MODELS, training.setup, observer.state, facts)
    files.write_json(folder / RESULT, _outcome(run, training))
    files.write_json(folder / "provenance.json", _provenance(run, material, key, training))


def _model_facts(run: Run, material: Material) -> dict[str, Any]:
    """Return what the models of a run take, for those who use them elsewhere."""
    facts = material.data.facts
    own_data = ("size", "channels", "fit") if "classes" in facts else ()
    images = {key: value for key, value in vars(material.pictures).items() if key != "stored"}
    backbone = material.backbone
    return {
        "data": material.data.sha256,
        "classes": list(facts.get("classes", ())),
        "stored": {key: facts[key] for key in own_data if key in facts},
        "images": images,
        "backbone": backbone and {"name": run.backbone, "sha256": backbone.sha256},
        "save": run.training.save,
        "precision": run.training.precision,
    }


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
    groups = {name: row[name] for name in tables.METRICS_OF_GROUPS if row.get(name) is not None}
    return {"round": row["round"], **{name: row.get(name) for name in tables.METRICS}, **groups}


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
    for name in (*tables.METRICS, *tables.METRICS_OF_GROUPS):
        values = [row[name] for row in quarter if row.get(name) is not None]
        if values:
            means[name] = math.fsum(values) / len(values)
    return {**_metrics(means), "evaluations": len(quarter)}
