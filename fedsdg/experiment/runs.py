"""One run from its config to its records: load, build, train, keep what was made."""

import shutil
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fedsdg import files
from fedsdg.data.partition import Partition
from fedsdg.experiment.building import build
from fedsdg.experiment.machine.gpu import repeatable
from fedsdg.experiment.material import Material
from fedsdg.experiment.resuming import Progress, Records, ResumableTraining, held
from fedsdg.experiment.run_config import RunConfig
from fedsdg.experiment.run_files import address, write_run, write_tables
from fedsdg.experiment.store import (
    MODELS,
    Address,
    checkpoints_of,
    is_kept,
    keep_or_reuse,
    libraries,
    require_writable,
)
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.files import note_spent
from fedsdg.files.places import RUN_FILES


def execute(
    run: RunConfig,
    material: Material,
    partition: Partition,
    folder: Path,
    *,
    store: Path,
    identity: Mapping[str, Any],
    progress: Progress = lambda *_: None,
    checkpoint_seconds: float = 30.0,
    trace: int = 0,
) -> str | None:
    """Do one run, or take it from the store, and write its records.

    A run that was killed or stopped goes on from its checkpoint, which lies beside the store; its
    records are those of an undisturbed run. Any exception becomes a record with `status: failed`:
    inside a grid a failed run is a row, not a hole. Failed runs are not kept in the store.

    Args:
        run: The run.
        material: Images and backbone.
        partition: Which client holds which sample.
        folder: Where the records go.
        store: The folder of finished runs.
        identity: What names the run in its records.
        progress: Called after each round.
        checkpoint_seconds: The time between checkpoints.
        trace: Print losses, penalties and gates of each batch whose number it divides; 0: none.

    Returns:
        None when it went well, else the sentence of its failure, which is recorded.
    """
    where = address(run, material, partition)
    records = Records()
    try:
        _check_partition(run, material, partition)
        _train_and_keep(
            run, material, partition, where, store, records, progress, checkpoint_seconds, trace
        )
        _deliver(run, where, store, folder, identity)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        return record_failure(run, error, folder, {**identity, **_hashes(where)}, records)
    return None


def _train_and_keep(
    run: RunConfig,
    material: Material,
    partition: Partition,
    where: Address,
    store: Path,
    records: Records,
    progress: Progress,
    checkpoint_seconds: float,
    trace: int,
) -> None:
    """Train a run and keep it in the store, if it is not there."""
    torch.set_num_threads(run.training.threads)
    made_for = {"config": run.to_dict(), **_hashes(where), **libraries()}
    checkpoints = Checkpoints(checkpoints_of(store, where.key), made_for)
    kept = is_kept(store, where.key)
    if kept and trace:
        print(
            "fedsdg: the run is finished, so there is nothing to trace; to train it again, name "
            "another store in FEDSDG_STORE",
            file=sys.stderr,
        )
    # A run that was killed between its end and that of its checkpoints has left some.
    if kept and not checkpoints.folder.is_dir():
        return
    require_writable(store)
    with held(checkpoints) as own:
        if not kept:
            tf32 = run.training.precision == "tf32"
            with repeatable(material.samples.images.device, tf32=tf32):
                training = ResumableTraining(
                    lambda: build(run, material, partition, trace=trace),
                    records,
                    own,
                    # Beside the checkpoints, on the disk that the user chose.
                    checkpoints.folder.parent,
                )
                training.run(checkpoint_seconds, progress)
            keep_or_reuse(
                store, where.key, lambda place: write_run(place, run, material, where, training)
            )
            _note_spent(training)
        if own is not None:
            files.flush_folder(store / where.key)
            own.remove()


def _note_spent(training: ResumableTraining) -> None:
    """Note a run's processor time, divided as its seconds are."""
    clock: dict[str, float] = {
        name: sum(row[f"{name}_seconds"] for row in training.records.timings)
        for name in ("train", "aggregate", "evaluate")
    }
    share = clock["evaluate"] / sum(clock.values())
    seconds = training.facts()["cpu_seconds"]
    note_spent("training", (1 - share) * seconds)
    note_spent("evaluation", share * seconds)


def _deliver(
    run: RunConfig, where: Address, store: Path, folder: Path, identity: Mapping[str, Any]
) -> None:
    """Copy the records of a stored run to their place, their hashes last of all."""
    done = store / where.key
    folder.mkdir(parents=True, exist_ok=True)
    (folder / files.HASHES).unlink(missing_ok=True)
    if not (done / MODELS).is_file():
        # They would be those of the run whose records were here before.
        (folder / MODELS).unlink(missing_ok=True)
    names = sorted(source.name for source in done.iterdir() if source.name != files.HASHES)
    for name in names:
        if name != "result.json":
            with files.atomic_path(folder / name) as temporary:
                shutil.copyfile(done / name, temporary)
    outcome = files.read_json(done / "result.json")
    described = {**_described(run), **identity, **_hashes(where)}
    files.write_json(
        folder / "result.json", {**described, "status": "ok", "error": None, **outcome}
    )
    files.write_hashes(folder, names)


def record_failure(
    run: RunConfig,
    error: Exception,
    folder: Path,
    identity: Mapping[str, Any],
    records: Records | None = None,
) -> str:
    """Write the records of a run that failed, as far as it came.

    Args:
        run: The run.
        error: Why it failed.
        folder: Where the records go.
        identity: What names the run in its records.
        records: The rows of its tables so far; None: there are none.

    Returns:
        The sentence of the failure.
    """
    message = f"{type(error).__name__}: {error}"
    for name in (files.HASHES, MODELS):
        (folder / name).unlink(missing_ok=True)
    write_tables(folder, records or Records())
    files.write_json(folder / "provenance.json", files.provenance())
    files.write_json(
        folder / "result.json",
        {**_described(run), **identity, "status": "failed", "error": message},
    )
    files.write_hashes(folder, [name for name in RUN_FILES if name != files.HASHES])
    return message


def _described(run: RunConfig) -> dict[str, Any]:
    return {"config": run.to_dict(), "config_hash": run.hash}


def _hashes(where: Address) -> dict[str, Any]:
    """Return the hashes of an address that are no part of `_described`."""
    facts = asdict(where)
    del facts["config_hash"]
    return facts


def _check_partition(run: RunConfig, material: Material, partition: Partition) -> None:
    """Raise ValueError unless the partition is the one that the run asks for."""
    if partition.facts["dataset_sha256"] != material.dataset_sha256:
        raise ValueError(
            f"the partition was made for another data set ({partition.facts['dataset']}) than "
            f"{run.dataset} as it is now; delete it and make it again with 'fedsdg partition'"
        )
    facts = partition.facts
    made = (facts["skew"], facts["seed"], partition.num_clients)
    wanted = (run.skew, run.seed, run.federation.clients)
    if made != wanted:
        raise ValueError(
            "the partition was made for {} with seed {} and {} clients, but the run wants {} with "
            "seed {} and {} clients; name partitions in the order of the config's seeds".format(
                *made, *wanted
            )
        )
    test = facts.get("test", "by-seed")
    if test != run.partition.test:
        raise ValueError(
            f"the partition's test set is {test}, but the run wants partition.test: "
            f"{run.partition.test}; delete it and make it again with 'fedsdg partition'"
        )
