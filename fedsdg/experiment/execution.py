"""One run from its task to its records: load, train, store, copy."""

import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsdg import files
from fedsdg.experiment import store
from fedsdg.experiment.building import build
from fedsdg.experiment.gpu import repeatable, threads
from fedsdg.experiment.material import load_material
from fedsdg.experiment.partitions import get_or_make
from fedsdg.experiment.run_files import write_run, write_tables
from fedsdg.experiment.runs import Task
from fedsdg.experiment.training import Progress, Records, Training
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.federation.records import COLUMNS
from fedsdg.federation.setup import Setup


def execute(task: Task, progress: Progress = lambda _: None, *, trace: int = 0) -> str | None:
    """Do one run, or take it from the store, and write its records into its folder.

    Any exception becomes a record with `status: failed`: inside a grid a failed run is a row, not a
    hole. Failed runs are not stored.

    Args:
        task: The run.
        progress: Called after each round.
        trace: Print losses, penalties and gates of each batch whose number it divides; 0: none.

    Returns:
        None if the run succeeded, else the sentence of its failure, which is recorded.

    Raises:
        Stopped: A signal ended the run; its state is saved.
    """
    records = Records()
    facts = task.facts()
    settings = task.run.training
    try:
        material = load_material(task.source, task.backbone, settings.device)
        partition = get_or_make(task, material.data)
        key = task.key(partition.sha256, material.backbone_hash)
        facts |= {"partition_hash": partition.sha256, "backbone_hash": material.backbone_hash}

        def run(folder: Path) -> None:
            device = material.samples.images.device
            tf32 = settings.precision == "tf32"
            with threads(settings.threads), repeatable(device, tf32=tf32):
                setup = build(task.run, material, partition, trace=trace)
                training = train(task, setup, key, records, progress)
            for observer in setup.observers:
                observer.complete(records.rounds, records.clients)
            write_run(folder, task.run, material, key, training)

        store.get_or_run(key, run)
        if task.folder is not None:
            store.copy_to_results(key, task.folder, facts)
    except (Exception, SystemExit) as error:
        # What data or a machine lack is one sentence; what fails in training shows where.
        if "partition_hash" in facts or not isinstance(error, (ValueError, OSError)):
            traceback.print_exc(file=sys.stderr)
        return record_failure(task, error, facts, records)
    return None


def train(task: Task, setup: Setup, key: str, records: Records, progress: Progress) -> Training:
    """Train a run from its newest checkpoint to its last round.

    The state is saved between two rounds, at a signal and from time to time; when it is saved
    changes no result. A run that fails by itself (a part, a loss that is not finite) loses its
    checkpoints and starts anew next time; one that the machine failed (memory, disk, device) keeps
    them.

    Args:
        task: The run.
        setup: Its federation.
        key: The run's address; its checkpoints are the caller's alone.
        records: Empty; it is filled round by round, so that a run that fails still shows how far it
            came.
        progress: Called after each round with its record.

    Returns:
        The federation after its last round.

    Raises:
        Stopped: A signal ended the run; its state is saved.
        ValueError: A part cannot work, or tried to end the program.
        FloatingPointError: A loss is not finite.
        MemoryError: Not even one client fits into memory.
    """
    folder = store.store_folder("checkpoints")
    checkpoints = Checkpoints(folder / key, {"address": key, "config": task.run.overrides()})
    records.columns = (*setup.declared_columns, *COLUMNS)
    # What clients keep lies beside the checkpoints if it is too large for the memory.
    training = Training(setup, records, folder)
    training.restore(checkpoints)
    try:
        training.run(checkpoints, task.checkpoint_seconds, progress)
    except (ValueError, FloatingPointError):
        checkpoints.remove()
        raise
    return training


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
    sentence = f"{type(error).__name__}: {error}"
    if isinstance(error, SystemExit):
        sentence += "; a part tried to end the program: let it raise an error"
    if task.folder is None:
        return sentence
    store.clear(task.folder)
    write_tables(task.folder, records or Records())
    files.write_json(task.folder / "provenance.json", files.provenance())
    files.write_json(task.folder / store.RESULT, {**facts, "status": "failed", "error": sentence})
    files.write_hashes(task.folder, store.RECORDS)
    return sentence
