"""One run from its config to its records: load, build the method, run it, write the files."""

from __future__ import annotations

import resource
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsdg import files
from fedsdg.data.datasets import ImageData, load_dataset
from fedsdg.data.images import Pictures
from fedsdg.data.partition_record import TEST, TRAIN, VAL, Partition, PartitionSpec
from fedsdg.experiment.conditioned import (
    circumstances,
    conditioned_rule,
    conditioned_samples,
    epochs,
    seen_samples,
    server_samples,
)
from fedsdg.experiment.config import PartitionConfig, RunConfig
from fedsdg.experiment.differing import groups_of
from fedsdg.experiment.machine.devices import take_device
from fedsdg.experiment.machine.gpu import gpu_facts, repeatable
from fedsdg.experiment.reach import source_hash
from fedsdg.experiment.resuming import Journey
from fedsdg.experiment.starts import find_start, require_backbone
from fedsdg.experiment.store import (
    MODELS,
    Address,
    checkpoints_of,
    keep_or_reuse,
    made_otherwise,
    require_writable,
    together_key,
)
from fedsdg.federation.asked import probes_of, told
from fedsdg.federation.checkpoints import Checkpoints
from fedsdg.federation.cohorts import Shards
from fedsdg.federation.fingerprint import fingerprint
from fedsdg.federation.local_training import LocalWork, Samples
from fedsdg.federation.losses.loss import Loss
from fedsdg.federation.personalisation.personalisation import Personalisation
from fedsdg.federation.pooling import Pooling
from fedsdg.federation.records import last_and_selected, last_quarter
from fedsdg.federation.rounds import Federation, Schedule
from fedsdg.files.records import (
    CLIENTS_MORE,
    CLIENTS_SCHEMA,
    ROUNDS_MORE,
    ROUNDS_SCHEMA,
    TIMINGS_SCHEMA,
    TRACE_SCHEMA,
    write_parquet,
)
from fedsdg.methods.method import Method
from fedsdg.methods.plugins import build_choice, find_method
from fedsdg.models import small_cnn
from fedsdg.models.adapters import AdapterConfig, initial_values, make_layout
from fedsdg.models.backbones import Backbone
from fedsdg.models.cohort import CohortModel
from fedsdg.models.instance_mixture import InstanceMixture
from fedsdg.models.interface import ClientModel
from fedsdg.models.mixture import MixedModel
from fedsdg.models.parameters import Layout, offsets
from fedsdg.models.peft_exchange import load_peft, start_from
from fedsdg.models.small_cnn import CnnArchitecture, SmallCnn
from fedsdg.rng import stream

Progress = Callable[[int, Mapping[str, Any]], None]


@dataclass(frozen=True)
class Material:
    """What the runs of a cell share: a data set's images, prepared and stored, and the backbone.

    No backbone where all parameters are trained.
    """

    samples: Samples
    num_classes: int
    dataset_sha256: str
    backbone: Backbone | None
    pictures: Pictures
    #: The domain [n] of every sample, where the data have some.
    domain: np.ndarray | None = None
    #: Where one's own data are from and what was done to them.
    data_facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def backbone_hash(self) -> str | None:
        """None without one: the network is then described by the sources alone."""
        return self.backbone.sha256 if self.backbone else None


def prepare_material(dataset: str | ImageData, backbone: Backbone | None, device: str) -> Material:
    """Bring a data set's images to the backbone's size, channels and normalisation.

    Without a backbone they keep their own size and channels (see ``CnnArchitecture``).

    ``dataset``: a name, or the data where they are loaded already.
    """
    if device == "cuda":
        take_device()
        if not torch.cuda.is_available():
            raise ValueError(
                "training.device is cuda, but this machine has no CUDA device; set it to cpu"
            )
    data = load_dataset(dataset) if isinstance(dataset, str) else dataset
    shape = (
        CnnArchitecture(data.images.shape[1], 3 if data.images.ndim == 4 else 1)
        if backbone is None
        else backbone.architecture
    )
    pictures = Pictures(
        data.images,
        size=shape.image_size,
        channels=shape.channels,
        mean=shape.mean,
        std=shape.std,
    )
    images = pictures.prepared(data.images)
    samples = Samples(
        torch.from_numpy(images).to(device), torch.from_numpy(data.labels).long().to(device)
    )
    return Material(
        samples, data.num_classes, data.sha256, backbone, pictures, data.domain, data.facts
    )


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


def _model(
    run: RunConfig, material: Material, personalisation: Personalisation, *number: int
) -> tuple[ClientModel, torch.Tensor, torch.Tensor]:
    """The model, and the first values of its communicated [d] and its private row [d_p].

    ``number``: of a further initialisation, beside the one that all methods share.
    """
    model, theta, private = _plain_model(run, material, personalisation, *number)
    if personalisation.mixed_weight is not None:
        return MixedModel(model, personalisation.mixed_weight), theta, theta.clone()
    if personalisation.anchors and isinstance(model, CohortModel):
        whole = InstanceMixture(model)
        missing = whole.layout.d_private - model.layout.d_private
        return whole, theta, torch.cat([private, private.new_zeros(missing)])
    return model, theta, private


def _plain_model(
    run: RunConfig, material: Material, personalisation: Personalisation, *number: int
) -> tuple[ClientModel, torch.Tensor, torch.Tensor]:
    """As ``_model``, without a mixture."""
    generator, samples = stream("init", run.seed, *number), material.samples
    if (run.trainable == "full") != (material.backbone is None):
        raise ValueError(
            f"trainable is {run.trainable}, and a backbone was "
            f"{'not ' if material.backbone is None else ''}given; adapters need one (--backbone), "
            "and with full there is none"
        )
    if material.backbone is None:
        shape = CnnArchitecture(samples.images.shape[2], samples.images.shape[1])
        layout = small_cnn.make_layout(shape, material.num_classes, **personalisation.adapters)
        return SmallCnn(layout), *small_cnn.initial_values(layout, generator)
    numbers = {name: value for name, value in asdict(run.adapters).items() if name != "start"}
    adapters = AdapterConfig(**numbers, **personalisation.adapters)
    layout = make_layout(material.backbone.architecture, material.num_classes, adapters)
    model = CohortModel(
        material.backbone,
        layout,
        adapters,
        material.num_classes,
        device=samples.images.device,
        bfloat16=run.training.precision == "bfloat16",
    )
    theta, private = initial_values(layout, adapters, generator)
    if run.adapters.start is not None:
        start = run.adapters.start
        if find_start(start.folder) != start:
            raise ValueError(
                f"the checkpoint in {start.folder} was changed since the config was read; "
                "start again"
            )
        require_backbone(start.folder, run.backbone, material.backbone.sha256)
        found = load_peft(start.folder)
        theta, private = start_from(found, start.folder, layout, adapters.scale, theta, private)
    return model, theta, private


def require_start(run: RunConfig, material: Material) -> None:
    """Raise ``ValueError`` where the checkpoint that a run starts from does not fit it."""
    if run.adapters.start is not None:
        _plain_model(run, material, method_of(run).personalisation)


def build(
    run: RunConfig, material: Material, partition: Partition, scratch: Path | None = None
) -> Federation:
    """Put a method together from its row of the table, ready to run.

    ``scratch``: the folder for what many clients keep, if it is too much for the memory.
    """
    method = method_of(run)
    personalisation, pooling = method.personalisation, method.pooling
    model, theta, private = _model(run, material, personalisation)
    device = material.samples.images.device
    training = run.training
    samples, facts = conditioned_samples(
        run, material.samples, partition, material.num_classes, material.pictures
    )
    shards = Shards(
        train=partition.shards(TRAIN),
        val=partition.shards(VAL),
        test=partition.shards(TEST),
        **server_samples(run, partition),
    )
    samples, seen = seen_samples(
        run,
        samples,
        partition,
        shards.global_test,
        material.num_classes,
        material.pictures,
        material.domain,
    )
    rule = conditioned_rule(run, method.rule)
    if method.heads_apart:
        theta = _heads_apart(run, model.layout, theta, rule.models(run.federation.clients))
    loss = _chosen(run, "loss")
    if isinstance(loss, Loss):
        loss.require_classes(material.num_classes)
    around = circumstances(run, shards, facts, central=pooling.central)
    disclosed = pooling.disclosed(np.array([len(own) for own in shards.train]))
    if disclosed is not None:
        out = around.held_out
        given = disclosed if out is None else np.where(out, 0.0, disclosed)
        around = replace(around, facts={**around.facts, "disclosed": given})
    made = Federation(
        model=model,
        layout=model.layout,
        samples=samples,
        shards=_pooled(pooling, shards, around.held_out, stream("partition", run.seed, 1)),
        rule=rule,
        work=LocalWork(
            optimiser=_chosen(run, "optimiser"),
            eta_g=training.eta_g,
            eta_p=training.eta_p,
            eta_m=training.eta_m,
            clip_norm=training.clip_norm,
            # In this order: sums of gradients depend on it in rounding.
            terms=method.terms,
            trace_every=run.federation.trace_every,
            loss=loss,
            private_first=personalisation.private_first,
            private_optimiser=training.private_optimiser,
            interleaved=personalisation.interleaved,
            shared_alone=personalisation.shared_alone,
            stopping=method.stopping,
        ),
        schedule=Schedule(
            rounds=run.federation.rounds,
            clients_per_round=run.federation.clients_per_round,
            epochs=epochs(run),
            batch_size=training.batch_size,
            evaluate_every=run.federation.evaluate_every,
            evaluate_from=run.federation.evaluate_from,
            personal_epochs=personalisation.epochs,
            refresh=training.refresh,
            shapley=run.federation.shapley,
            trajectory=run.federation.trajectory,
            save=training.save,
        ),
        seed=run.seed,
        theta=theta.to(device),
        private=private.to(device),
        probes=probes_of(rule),
        circumstances=around,
        own=personalisation.own,
        anchors=personalisation.anchors,
        pooling=pooling,
        first=_own_starts(run, material, personalisation, device),
        seen=seen,
        scratch=scratch,
    )
    made.state = told(rule, made.state, partition, groups_of(run))
    return made


def method_of(run: RunConfig) -> Method:
    """The method of a run, with the values of its parameters."""
    return find_method(run.method, run.plugin).with_values(run.parameters)


def _chosen(run: RunConfig, key: str) -> Any:
    """The optimiser or the loss that a run trains with."""
    return build_choice(key, getattr(run.training, key), run.borrowed.get(key))


def _pooled(
    pooling: Pooling, shards: Shards, held_out: np.ndarray | None, generator: np.random.Generator
) -> Shards:
    """What each client trains on where nobody gives data away that never trains itself."""
    if held_out is None:
        return pooling.shards(shards, generator)
    own = [mine[:0] if out else mine for mine, out in zip(shards.train, held_out, strict=True)]
    pooled = pooling.shards(replace(shards, train=own), generator)
    both = zip(shards.train, pooled.train, held_out, strict=True)
    return replace(pooled, train=[mine if out else more for mine, more, out in both])


def _own_starts(
    run: RunConfig, material: Material, personalisation: Personalisation, device: torch.device
) -> torch.Tensor | None:
    """[K, d]: an initialisation for every client, where a run asks for them."""
    if run.federation.trajectory != "own":
        return None
    seeds = range(1, run.federation.clients + 1)
    models = [_model(run, material, personalisation, number)[1] for number in seeds]
    return torch.stack(models).to(device)


def _heads_apart(run: RunConfig, layout: Layout, theta: torch.Tensor, count: int) -> torch.Tensor:
    """``count`` copies of a communicated row, [count, d], whose heads are drawn one by one.

    The first keeps its head. Of models that start equal no loss could tell which fits whom.
    """
    models = theta.repeat(count, 1)
    for name, place in offsets(layout.communicated).items():
        if name == "head.weight":
            spread = float(theta[place].std())
            for number in range(1, count):
                draw = stream("init", run.seed, number).normal(
                    0.0, spread, place.stop - place.start
                )
                models[number, place] = torch.from_numpy(draw).to(models)
    return models


@dataclass(frozen=True)
class Assignment:
    """A run to be done: its partition, where its records go, and what names it in them."""

    run: RunConfig
    partition: Partition
    folder: Path
    identity: Mapping[str, Any]


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
            made_for = {"config": one.run.to_dict(), **_hashes(one, material), **_libraries()}
            place = Checkpoints(checkpoints_of(store, key), {**made_for, **company})
            checkpoints.append(stack.enter_context(closing(place)))
        if not all((store / key).is_dir() for key in keys):
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
                keep_or_reuse(store, key, _writer(one, material, federation, facts))
        # Only when all are stored: until then they could not go on without one another.
        for place, key in zip(checkpoints, keys, strict=True):
            if place.folder.is_dir():
                files.flush_folder(store / key)
                place.remove()
    for one, key in zip(assignments, keys, strict=True):
        _deliver(one, material, store / key)


def _deliver(one: Assignment, material: Material, done: Path) -> None:
    """Copy the records of a stored run to their place, its result last of all."""
    folder = one.folder
    folder.mkdir(parents=True, exist_ok=True)
    if not (done / MODELS).is_file():
        # Of the run whose records were here before.
        (folder / MODELS).unlink(missing_ok=True)
    for source in sorted(done.iterdir()):
        if source.name != "result.json":
            with files.atomic_path(folder / source.name) as temporary:
                shutil.copyfile(source, temporary)
    outcome = files.read_json(done / "result.json")
    described = {**_described(one.run), **one.identity, **_hashes(one, material)}
    files.write_json(
        folder / "result.json", {**described, "status": "ok", "error": None, **outcome}
    )


def address(run: RunConfig, material: Material, partition: Partition) -> Address:
    """Where a finished run is kept."""
    return Address(run.hash, partition.sha256, material.backbone_hash, source_hash(run))


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
    (folder / MODELS).unlink(missing_ok=True)
    _write_tables(folder, getattr(error, "federation", None))
    files.write_json(folder / "provenance.json", files.provenance())
    files.write_json(
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
    assignments: Sequence[Assignment],
    material: Material,
    checkpoints: Sequence[Checkpoints],
    checkpoint_seconds: float,
    progress: Callable[[int, int, Mapping[str, Any]], None],
) -> tuple[list[Federation], list[dict[str, Any]]]:
    """The federations after their last round, and what each has cost."""

    def make() -> list[Federation]:
        # Beside the other checkpoints, on the disk that the user chose.
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


def _writer(
    one: Assignment, material: Material, federation: Federation, facts: Mapping[str, Any]
) -> Callable[[Path], None]:
    return lambda place: _write_run(place, one, material, federation, facts)


def _write_run(
    place: Path,
    one: Assignment,
    material: Material,
    federation: Federation,
    effort: Mapping[str, Any],
) -> None:
    run = one.run
    _write_tables(place, federation)
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
        },
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    files.write_json(
        place / "provenance.json",
        {
            **files.provenance(),
            "device": str(material.samples.images.device),
            **gpu_facts(material.samples.images.device),
            "threads": run.training.threads,
            **({"data": dict(material.data_facts)} if material.data_facts else {}),
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
    brought = ("size", "channels", "resize", "fit")
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


def _write_tables(folder: Path, federation: Federation | None) -> None:
    records = federation.records if federation is not None else None
    tables: dict[str, tuple[Any, ...]] = {
        "rounds": (records.rounds if records else [], ROUNDS_SCHEMA, ROUNDS_MORE),
        "clients": (
            records.clients if records else [],
            CLIENTS_SCHEMA,
            CLIENTS_MORE,
        ),
        "timings": (records.timings if records else [], TIMINGS_SCHEMA),
    }
    if records and records.trace:
        tables["trace"] = (records.trace, TRACE_SCHEMA)
    for name, table in tables.items():
        write_parquet(folder / f"{name}.parquet", *table)
