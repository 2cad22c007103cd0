"""One run from its task to its records: load, train, store, copy."""

import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsdg import files
from fedsdg.data.partition_files import read_partition
from fedsdg.experiment.material import load_material
from fedsdg.experiment.partitions import require_partition
from fedsdg.experiment.run_files import write_run, write_tables
from fedsdg.experiment.runs import Task
from fedsdg.experiment.store import RECORDS, RESULT, clear, copy_to_results, get_or_run
from fedsdg.experiment.training import Progress, Records, train


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
    try:
        material = load_material(task.source, task.backbone, task.run.training.device)
        partition = read_partition(task.partition)
        require_partition(task.run, material.data, partition)
        key = task.key(partition.sha256, material.backbone_hash)
        facts |= {
            "partition_hash": partition.sha256,
            "backbone_hash": material.backbone_hash,
        }

        def run(folder: Path) -> None:
            training = train(task, material, partition, key, records, progress, trace)
            write_run(folder, task.run, material, key, training)

        get_or_run(key, run)
        if task.folder is not None:
            copy_to_results(key, task.folder, facts)
    except (Exception, SystemExit) as error:
        # What data or a machine lack is one sentence; what fails in training shows where.
        if "partition_hash" in facts or not isinstance(error, (ValueError, OSError)):
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
    sentence = f"{type(error).__name__}: {error}"
    if isinstance(error, SystemExit):
        sentence += "; a part tried to end the program: let it raise an error"
    if task.folder is None:
        return sentence
    clear(task.folder)
    write_tables(task.folder, records or Records())
    files.write_json(task.folder / "provenance.json", files.provenance())
    files.write_json(task.folder / RESULT, {**facts, "status": "failed", "error": sentence})
    files.write_hashes(task.folder, RECORDS)
    return sentence
