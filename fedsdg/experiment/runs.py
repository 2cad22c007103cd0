"""One run from its config to its records: load, build, carry out, keep what was made."""

from __future__ import annotations

import shutil
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from fedsdg import files
from fedsdg.data.partition import Partition
from fedsdg.experiment.building import build
from fedsdg.experiment.machine.gpu import repeatable
from fedsdg.experiment.material import Material
from fedsdg.experiment.resuming import Journey
from fedsdg.experiment.run_config import RunConfig
from fedsdg.experiment.run_files import Assignment, address, write_tables, writer
from fedsdg.experiment.store import (
    MODELS,
    checkpoints_of,
    is_kept,
    keep_or_reuse,
    libraries,
    made_otherwise,
    require_writable,
    together_key,
)
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.federation.rounds import Federation
from fedsdg.federation.together import no_exit
from fedsdg.files import note_spent
from fedsdg.files.places import RUN_FILES

Progress = Callable[[int, Mapping[str, Any]], None]


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
) -> str | None:
    """Do one run, or take it from the store, and write its records into ``folder``.

    A run that was killed or stopped goes on from its checkpoint, which lies beside the store and
    is renewed at most every ``checkpoint_seconds``; its records are those of an undisturbed run.

    Returns None when it went well. Any exception becomes a record with ``status: failed``, and
    its sentence is returned: inside a grid a failed run is a row, not a hole. Failed runs are not
    kept in the store.
    """
    one = Assignment(run, partition, folder, identity)
    try:
        _carry_out([one], material, store, lambda _, *seen: progress(*seen), checkpoint_seconds)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        return record_failure(run, error, folder, {**identity, **_hashes(one, material)})
    return None


def execute_together(
    assignments: Sequence[Assignment],
    material: Material,
    *,
    store: Path,
    progress: Callable[[int, int, Mapping[str, Any]], None] = lambda *_: None,
    checkpoint_seconds: float = 30.0,
) -> list[str | None]:
    """Do several runs that differ in their seed in one pass, each with records as if alone.

    They equal runs made alone but for rounding, say so in their provenance (``seeds_together``),
    and have addresses of their own in the store. What the store holds already, made alone or in
    other company, is taken from there. A run that fails by itself takes the others out
    of the pass: all are then done one by one. ``progress(number of the run, round, record)``.
    Returns what ``execute`` would for each.
    """
    others = {replace(one.run, seed=0).hash for one in assignments}
    if len(others) > 1:
        raise ValueError("runs that train together may differ in their seed alone")

    def alone(number: int) -> str | None:
        one = assignments[number]
        return execute(
            one.run,
            material,
            one.partition,
            one.folder,
            store=store,
            identity=one.identity,
            progress=lambda *seen: progress(number, *seen),
            checkpoint_seconds=checkpoint_seconds,
        )

    if len(assignments) == 1:
        return [alone(0)]
    outcomes: dict[int, str | None] = {}
    seeds = [one.run.seed for one in assignments]
    for number, one in enumerate(assignments):
        made = made_otherwise(store, _key(one, material), seeds)
        if made is not None:
            _deliver(one, material, store / made)
            outcomes[number] = None
    left = [number for number in range(len(assignments)) if number not in outcomes]
    group = [assignments[number] for number in left]
    try:
        if group:
            _carry_out(
                group,
                material,
                store,
                lambda number, *seen: progress(left[number], *seen),
                checkpoint_seconds,
            )
            outcomes |= dict.fromkeys(left)
    except (ValueError, FloatingPointError) as error:
        print(f"fedsdg: {error}; its seeds are now done one by one", file=sys.stderr, flush=True)
        outcomes |= {number: alone(number) for number in left}
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        for number, one in zip(left, group, strict=True):
            facts = {**one.identity, **_hashes(one, material)}
            outcomes[number] = record_failure(one.run, error, one.folder, facts)
    return [outcomes[number] for number in range(len(assignments))]


def _carry_out(
    assignments: Sequence[Assignment],
    material: Material,
    store: Path,
    progress: Callable[[int, int, Mapping[str, Any]], None],
    checkpoint_seconds: float,
) -> None:
    """Train in one pass what the store lacks, keep it there, and deliver the records."""
    torch.set_num_threads(assignments[0].run.training.threads)
    seeds = [one.run.seed for one in assignments]
    company = {"seeds_together": seeds} if len(seeds) > 1 else {}
    for one in assignments:
        _check_partition(one.run, material, one.partition)
    keys = [together_key(_key(one, material), seeds) for one in assignments]
    with ExitStack() as stack:
        checkpoints = []
        for one, key in zip(assignments, keys, strict=True):
            made_for = {"config": one.run.to_dict(), **_hashes(one, material), **libraries()}
            place = Checkpoints(checkpoints_of(store, key), {**made_for, **company})
            checkpoints.append(stack.enter_context(closing(place)))
        if not all(is_kept(store, key) for key in keys):
            require_writable(store)
            training = assignments[0].run.training
            with repeatable(material.samples.images.device, tf32=training.precision == "tf32"):
                federations, efforts = _train(
                    assignments, material, checkpoints, checkpoint_seconds, progress
                )
            for one, key, federation, effort in zip(
                assignments, keys, federations, efforts, strict=True
            ):
                facts = {**company, **effort}
                keep_or_reuse(store, key, writer(one, material, federation, facts))
                _note_spent(federation, effort)
        # Only when all are stored: until then they could not go on without one another.
        for place, key in zip(checkpoints, keys, strict=True):
            if place.folder.is_dir():
                files.flush_folder(store / key)
                place.remove()
    for one, key in zip(assignments, keys, strict=True):
        _deliver(one, material, store / key)


def _note_spent(federation: Federation, effort: Mapping[str, Any]) -> None:
    """Note a run's processor time, divided as its seconds are."""
    clock: dict[str, float] = {
        name: sum(row[f"{name}_seconds"] for row in federation.records.timings)
        for name in ("train", "aggregate", "evaluate")
    }
    share = clock["evaluate"] / sum(clock.values())
    note_spent("training", (1 - share) * effort["cpu_seconds"])
    note_spent("evaluation", share * effort["cpu_seconds"])


def _deliver(one: Assignment, material: Material, done: Path) -> None:
    """Copy the records of a stored run to their place, their hashes last of all."""
    folder = one.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / files.HASHES).unlink(missing_ok=True)
    if not (done / MODELS).is_file():
        # Of the run whose records were here before.
        (folder / MODELS).unlink(missing_ok=True)
    names = sorted(source.name for source in done.iterdir() if source.name != files.HASHES)
    for name in names:
        if name != "result.json":
            with files.atomic_path(folder / name) as temporary:
                shutil.copyfile(done / name, temporary)
    outcome = files.read_json(done / "result.json")
    described = {**_described(one.run), **one.identity, **_hashes(one, material)}
    files.write_json(
        folder / "result.json", {**described, "status": "ok", "error": None, **outcome}
    )
    files.write_hashes(folder, names)


def _hashes(one: Assignment, material: Material) -> dict[str, Any]:
    """What of the address is no part of ``_described``."""
    facts = asdict(address(one.run, material, one.partition))
    del facts["config_hash"]
    return facts


def _key(one: Assignment, material: Material) -> str:
    return address(one.run, material, one.partition).key


def record_failure(
    run: RunConfig, error: Exception, folder: Path, identity: Mapping[str, Any]
) -> str:
    """Write the records of a run that failed, as far as it came; returns the error's sentence."""
    message = f"{type(error).__name__}: {error}"
    for name in (files.HASHES, MODELS):
        (folder / name).unlink(missing_ok=True)
    write_tables(folder, getattr(error, "federation", None))
    files.write_json(folder / "provenance.json", files.provenance())
    files.write_json(
        folder / "result.json",
        {**_described(run), **identity, "status": "failed", "error": message},
    )
    files.write_hashes(folder, [name for name in RUN_FILES if name != files.HASHES])
    return message


def _described(run: RunConfig) -> dict[str, Any]:
    return {"config": run.to_dict(), "config_hash": run.hash}


def _check_partition(run: RunConfig, material: Material, partition: Partition) -> None:
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


def _train(
    assignments: Sequence[Assignment],
    material: Material,
    checkpoints: Sequence[Checkpoints],
    checkpoint_seconds: float,
    progress: Callable[[int, int, Mapping[str, Any]], None],
) -> tuple[list[Federation], list[dict[str, Any]]]:
    """The federations after their last round, and what each has cost."""

    def make() -> list[Federation]:
        # Beside the other checkpoints, on the disk that the user chose.
        with no_exit("before the first round"):
            return [
                build(one.run, material, one.partition, scratch=kept.folder.parent)
                for one, kept in zip(assignments, checkpoints, strict=True)
            ]

    journey = Journey(make, checkpoints)
    try:
        efforts = journey.run(seconds=checkpoint_seconds, progress=progress)
    except Exception as error:
        # What was recorded up to the failure is shown with it.
        if len(journey.federations) == 1:
            error.federation = journey.federations[0]  # type: ignore[attr-defined]
        raise
    return journey.federations, efforts
