"""One run from its task to its records: load, train, store, copy.

A finished run is a folder: tables, `result.json`, `provenance.json` and, if it keeps them, models.
"""

import math
import sys
import traceback
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsdg import files
from fedsdg.config.plugins import raised
from fedsdg.config.run import Run
from fedsdg.errors import remark
from fedsdg.experiment import store
from fedsdg.experiment.building import build
from fedsdg.experiment.gpu import gpu_facts, repeatable
from fedsdg.experiment.material import Material, get_or_make, load_material
from fedsdg.experiment.runs import Task
from fedsdg.experiment.saved_models import ModelSaver, write_models
from fedsdg.experiment.training import Progress, Records, Training
from fedsdg.federation.accuracy import selected_round
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.federation.records import COLUMNS
from fedsdg.files import records as tables


def execute(task: Task, progress: Progress = lambda _: None, *, trace: int = 0) -> str | None:
    """Do one run, or take it from the store, and write its records into its folder.

    An exception in training becomes a record with `status: failed`: inside a grid a failed run is a
    row, not a hole. Failed runs are not stored.

    Args:
        task: The run.
        progress: Called after each round.
        trace: Print losses, penalties and gates of each batch whose number it divides; 0: none.

    Returns:
        None if the run succeeded, else the sentence of its failure, which is recorded.

    Raises:
        Stopped: A signal ended the run; its state is saved.
        OSError: Images or backbone are missing.
        ValueError: Images or backbone are damaged, or this machine has no such device.
    """
    records = Records()
    settings = task.run.training
    material = load_material(task.source, task.backbone, settings.device)
    partition = get_or_make(task, material.data)
    hashes = {"partition_hash": partition.sha256, "backbone_hash": material.backbone_hash}
    facts = {**task.facts(), **hashes}
    key = task.key(partition.sha256, material.backbone_hash)
    states = store.store_folder("checkpoints")
    if trace and store.stored_run(key):
        remark(f"the run is finished, so no batch is traced; set {store.STORE} to an empty folder")
    try:

        def run(folder: Path) -> None:
            device = material.samples.images.device
            tf32 = settings.precision == "tf32"
            with repeatable(device, threads=settings.threads, tf32=tf32):
                setup = build(task.run, material, partition, trace=trace)
                records.columns = (*setup.declared_columns, *COLUMNS)
                # What clients keep lies beside the checkpoints if it is too large for the memory.
                training = Training(setup, records, states)
                made_for = {"address": key, "config": task.run.overrides()}
                checkpoints = Checkpoints(states / key, made_for)
                training.run(checkpoints, task.checkpoint_seconds, progress)
            for observer in setup.observers:
                observer.complete(records.rounds, records.clients)
            _write_run(folder, task.run, material, key, training)

        store.get_or_run(key, run)
        if task.folder is not None:
            store.copy_to_results(key, task.folder, facts)
    except (Exception, SystemExit) as error:
        if not isinstance(error, ValueError | FloatingPointError | OSError):
            traceback.print_exc(file=sys.stderr)
        return record_failure(task, error, facts, records)
    return None


def record_failure(
    task: Task, error: BaseException, facts: Mapping[str, Any], records: Records | None = None
) -> str:
    """Write the records of a run that failed, as far as it came.

    Args:
        task: The run.
        error: The reason.
        facts: What ``result.json`` says of the run.
        records: The rows of its tables; None: there are none.

    Returns:
        The sentence of the failure.
    """
    sentence = raised(error)
    if isinstance(error, SystemExit):
        sentence += "; a part tried to end the program: let it raise an error"
    if task.folder is None:
        return sentence
    store.clear(task.folder)
    _write_tables(task.folder, records or Records())
    files.write_json(task.folder / "provenance.json", files.provenance())
    files.write_json(task.folder / store.RESULT, {**facts, "status": "failed", "error": sentence})
    files.write_hashes(task.folder, store.RECORDS)
    return sentence


# --- The files of a run ---------------------------------------------------------------------------


def _write_tables(folder: Path, records: Records) -> None:
    """Write the tables of a run, as far as it came."""
    columns = records.columns
    for name, rows, schema, more in (
        ("rounds", records.rounds, tables.ROUNDS_SCHEMA, tables.more("rounds", columns)),
        ("clients", records.clients, tables.CLIENTS_SCHEMA, tables.more("clients", columns)),
        ("timings", records.timings, tables.TIMINGS_SCHEMA, None),
    ):
        tables.write_parquet(folder / f"{name}.parquet", rows, schema, more)


def _write_run(folder: Path, run: Run, material: Material, key: str, training: Training) -> None:
    """Write the files of a finished run with an address into a folder."""
    _write_tables(folder, training.records)
    for observer in training.setup.observers:
        if isinstance(observer, ModelSaver):
            facts = _model_facts(run, material) | {"address": key}
            write_models(folder / store.MODELS, training.setup, observer.state, facts)
    files.write_json(folder / store.RESULT, _outcome(run, training))
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
    # Frozen parameters are not counted: they are the same for all, as the backbone is.
    numbers_kept = layout.own_parameters + sum(training.setup.kept_widths.values())
    return {
        "last": _metrics(evaluated[-1]),
        "selected": _metrics(next(row for row in evaluated if row["round"] == selected)),
        "end": last_quarter(rounds),
        "rounds": run.federation.rounds,
        "bytes_up": sum(row["bytes_up"] for row in rounds),
        "bytes_down": sum(row["bytes_down"] for row in rounds),
        "client_storage_bytes": numbers_kept * training.setup.private.element_size(),
        "communicated_parameters": layout.d,
        "private_parameters": layout.own_parameters,
        "personal_steps": sum(row["personal_steps"] for row in rounds),
    }


def _provenance(run: Run, material: Material, key: str, training: Training) -> dict[str, Any]:
    """Return where, with what and at what cost a run was made."""
    taken = material.backbone.facts.get("taken_from") if material.backbone else None
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
