"""One run from its config to its records: load, build the method, run it, write the files."""

from __future__ import annotations

import resource
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsdg import results
from fedsdg.config import PartitionConfig, RunConfig
from fedsdg.data.datasets import ImageData, load_dataset
from fedsdg.data.images import prepare
from fedsdg.data.partition_record import TEST, TRAIN, VAL, Partition, PartitionSpec
from fedsdg.devices import take_device
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.federation.cohorts import Shards
from fedsdg.federation.local_training import LocalWork, Samples
from fedsdg.federation.personalisation import Personalisation
from fedsdg.federation.records import last_and_selected
from fedsdg.federation.rounds import Federation, Schedule
from fedsdg.federation.store import (
    SOURCES,
    checkpoints_of,
    flush_folder,
    keep_or_reuse,
    require_writable,
    run_key,
)
from fedsdg.methods import METHODS
from fedsdg.models.adapters import AdapterConfig, initial_values, make_layout
from fedsdg.models.backbones import Backbone
from fedsdg.models.cohort import CohortModel
from fedsdg.resuming import run_to_the_end
from fedsdg.rng import stream

Progress = Callable[[int, Mapping[str, Any]], None]


@dataclass(frozen=True)
class Material:
    """What the runs of a cell share: the prepared images of a data set, and the backbone."""

    samples: Samples
    num_classes: int
    dataset_sha256: str
    backbone: Backbone


def prepare_material(dataset: str | ImageData, backbone: Backbone, device: str) -> Material:
    """Bring a data set's images to the backbone's size, channels and normalisation.

    ``dataset``: a name, or the data where they are loaded already.
    """
    if device == "cuda":
        take_device()
        if not torch.cuda.is_available():
            raise ValueError(
                "training.device is cuda, but this machine has no CUDA device; set it to cpu"
            )
    data = load_dataset(dataset) if isinstance(dataset, str) else dataset
    shape = backbone.architecture
    images = prepare(
        data.images,
        size=shape.image_size,
        channels=shape.channels,
        mean=shape.mean,
        std=shape.std,
    )
    samples = Samples(
        torch.from_numpy(images).to(device), torch.from_numpy(data.labels).long().to(device)
    )
    return Material(samples, data.num_classes, data.sha256, backbone)


def make_partition(
    dataset: str | ImageData, skew: str, seed: int, clients: int, settings: PartitionConfig
) -> Partition:
    """Divide a data set among clients, drawing from the stream ``partition`` of ``seed``.

    ``dataset``: a name, or the data where they are loaded already.
    """
    from fedsdg.data.partition import partition_clients
    from fedsdg.data.skew import parse_skew

    return partition_clients(
        load_dataset(dataset) if isinstance(dataset, str) else dataset,
        num_clients=clients,
        skew=parse_skew(skew),
        seed=seed,
        spec=PartitionSpec(**asdict(settings)),
        generator=stream("partition", seed),
    )


def global_images(run: RunConfig, partition: Partition) -> np.ndarray:
    """The samples on which global accuracy is measured: the global test set, or a part of it.

    The part is drawn from the stream ``evaluation`` of the seed, so it is the same for all methods.
    Raises ``ValueError`` where it would be larger than the whole.
    """
    everything = partition.global_test()
    wanted = run.federation.global_images
    if wanted is None:
        return everything
    if wanted > len(everything):
        raise ValueError(
            f"federation.global_images is {wanted}, but the global test set of {run.dataset} has "
            f"{len(everything)} images; lower it, or set it to null for all of them"
        )
    chosen = stream("evaluation", run.seed).choice(len(everything), wanted, replace=False)
    return everything[np.sort(chosen)]


def build(run: RunConfig, material: Material, partition: Partition) -> Federation:
    """Put a method together from its row of the table, ready to run."""
    row = METHODS[run.method]
    personalisation: Personalisation = row.personalisation.build(run.parameters)
    adapters = AdapterConfig(**asdict(run.adapters), **personalisation.adapters)
    layout = make_layout(material.backbone.architecture, material.num_classes, adapters)
    theta, private = initial_values(layout, adapters, stream("init", run.seed))
    device = material.samples.images.device
    model = CohortModel(material.backbone, layout, adapters, material.num_classes, device=device)
    training = run.training
    everyone = range(partition.num_clients)
    return Federation(
        model=model,
        layout=layout,
        samples=material.samples,
        shards=Shards(
            train=[partition.indices(k, TRAIN) for k in everyone],
            val=[partition.indices(k, VAL) for k in everyone],
            test=[partition.indices(k, TEST) for k in everyone],
            global_test=global_images(run, partition),
        ),
        rule=row.rule.build(run.parameters),
        work=LocalWork(
            optimiser=training.optimiser,
            eta_g=training.eta_g,
            eta_p=training.eta_p,
            eta_m=training.eta_m,
            clip_norm=training.clip_norm,
            terms=tuple(part.build(run.parameters) for part in row.objective),
            trace_every=run.federation.trace_every,
        ),
        schedule=Schedule(
            rounds=run.federation.rounds,
            clients_per_round=run.federation.clients_per_round,
            epochs=training.epochs,
            batch_size=training.batch_size,
            evaluate_every=run.federation.evaluate_every,
            personal_epochs=personalisation.epochs,
        ),
        seed=run.seed,
        theta=theta.to(device),
        private=private.to(device),
    )


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
    torch.set_num_threads(run.training.threads)
    facts = {
        "partition_hash": partition.sha256,
        "backbone_hash": material.backbone.sha256,
        "source_hash": results.source_hash(*SOURCES),
    }
    try:
        _check_partition(run, material, partition)
        key = run_key(run.hash, partition.sha256, material.backbone.sha256)
        done = store / key
        made_for = {"config": run.to_dict(), **facts, **_libraries()}
        with closing(Checkpoints(checkpoints_of(store, key), made_for)) as checkpoints:
            if not done.is_dir():
                require_writable(store)
                federation, effort = _train(
                    run, material, partition, checkpoints, checkpoint_seconds, progress
                )
                keep_or_reuse(
                    store, key, lambda place: _write_run(place, run, material, federation, effort)
                )
            if checkpoints.folder.is_dir():
                flush_folder(done)
                checkpoints.remove()
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        return record_failure(run, error, folder, {**identity, **facts})
    folder.mkdir(parents=True, exist_ok=True)
    for source in sorted(done.iterdir()):
        if source.name != "result.json":
            with results.atomic_path(folder / source.name) as temporary:
                shutil.copyfile(source, temporary)
    outcome = results.read_json(done / "result.json")
    described = {**_described(run), **identity, **facts}
    results.write_json(
        folder / "result.json", {**described, "status": "ok", "error": None, **outcome}
    )
    return None


def record_failure(
    run: RunConfig, error: Exception, folder: Path, identity: Mapping[str, Any]
) -> str:
    """Write the records of a run that failed, as far as it came; returns the error's sentence."""
    message = f"{type(error).__name__}: {error}"
    _write_tables(folder, getattr(error, "federation", None))
    results.write_json(folder / "provenance.json", results.provenance())
    results.write_json(
        folder / "result.json",
        {**_described(run), **identity, "status": "failed", "error": message},
    )
    return message


def _described(run: RunConfig) -> dict[str, Any]:
    return {"config": run.to_dict(), "config_hash": run.hash}


def _check_partition(run: RunConfig, material: Material, partition: Partition) -> None:
    if partition.dataset_sha256 != material.dataset_sha256:
        raise ValueError(
            f"the partition was made for another data set ({partition.dataset}) than "
            f"{run.dataset} as it is now; delete it and make it again with 'fedsdg partition'"
        )
    made = (partition.skew, partition.seed, partition.num_clients)
    wanted = (run.skew, run.seed, run.federation.clients)
    if made != wanted:
        raise ValueError(
            "the partition was made for {} with seed {} and {} clients, but the run wants {} with "
            "seed {} and {} clients; name partitions in the order of the config's seeds".format(
                *made, *wanted
            )
        )


def _libraries() -> dict[str, str]:
    """Another version may round differently; a run is not begun with one, finished with another."""
    return {"torch": torch.__version__, "numpy": np.__version__}


def _train(
    run: RunConfig,
    material: Material,
    partition: Partition,
    checkpoints: Checkpoints,
    checkpoint_seconds: float,
    progress: Progress,
) -> tuple[Federation, dict[str, Any]]:
    """The federation after its last round, and what it has cost."""
    federation = build(run, material, partition)
    try:
        effort = run_to_the_end(
            federation, checkpoints, seconds=checkpoint_seconds, progress=progress
        )
    except Exception as error:
        # What was recorded up to the failure is shown with it.
        error.federation = federation  # type: ignore[attr-defined]
        raise
    return federation, effort


def _write_run(
    place: Path,
    run: RunConfig,
    material: Material,
    federation: Federation,
    effort: Mapping[str, Any],
) -> None:
    _write_tables(place, federation)
    records = federation.records
    last, selected = last_and_selected(records.rounds)
    results.write_json(
        place / "result.json",
        {
            "last": last,
            "selected": selected,
            "rounds": run.federation.rounds,
            "bytes_up": sum(row["bytes_up"] for row in records.rounds),
            "bytes_down": sum(row["bytes_down"] for row in records.rounds),
            "client_storage_bytes": records.client_storage_bytes,
            "communicated_parameters": federation.layout.d,
            "private_parameters": federation.layout.d_private,
            "degenerate_rounds": int(sum(row["degenerate"] for row in records.rounds)),
        },
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    results.write_json(
        place / "provenance.json",
        {
            **results.provenance(),
            "device": str(material.samples.images.device),
            "threads": run.training.threads,
            **effort,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            # Kilobytes on Linux, bytes on macOS.
            "peak_rss_mb": peak / (1024 if sys.platform != "darwin" else 1024**2),
        },
    )


def _write_tables(folder: Path, federation: Federation | None) -> None:
    records = federation.records if federation is not None else None
    tables = {
        "rounds": (results.ROUNDS_SCHEMA, records.rounds if records else []),
        "clients": (results.CLIENTS_SCHEMA, records.clients if records else []),
        "timings": (results.TIMINGS_SCHEMA, records.timings if records else []),
    }
    if records and records.trace:
        tables["trace"] = (results.TRACE_SCHEMA, records.trace)
    for name, (schema, rows) in tables.items():
        results.write_parquet(folder / f"{name}.parquet", rows, schema)
