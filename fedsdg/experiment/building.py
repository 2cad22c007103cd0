"""A run's federation, put together from its config: model, first values, conditions, observers."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsdg import models
from fedsdg.config.run import Run
from fedsdg.config.sections import find_start
from fedsdg.data.partition import Partition
from fedsdg.experiment.material import Material
from fedsdg.experiment.saved_models import ModelSaver
from fedsdg.federation.assembly import assemble
from fedsdg.federation.conditions.condition import Condition
from fedsdg.federation.observers.observer import Observer
from fedsdg.federation.observers.shapley import Shapley
from fedsdg.federation.observers.trajectory import Trajectory
from fedsdg.federation.setup import Schedule, Setup
from fedsdg.federation.tasks import Work
from fedsdg.files import read_json
from fedsdg.methods.method import Method
from fedsdg.parts import Part
from fedsdg.rng import stream

CONDITIONS = (
    *("label_conflict", "feature_shift", "label_noise", "attack"),
    *("compute", "quantisation", "dropout"),
)
"""Conditions in the order in which they change the data; those of plugins follow."""


def build(run: Run, material: Material, partition: Partition, *, trace: int = 0) -> Setup:
    """Put a run's federation together from its config.

    Args:
        run: The run.
        material: Images and backbone.
        partition: Which client holds which sample.
        trace: Print losses, penalties and gates of each batch whose number it divides; 0: none.

    Returns:
        The federation before its first round.

    Raises:
        ValueError: What the config asks for does not go together, or could never work.
    """
    method = run.method.method
    federation = run.federation
    training = run.training
    images = material.samples.images
    model, first, private = _initial_model(run, material)
    own_starts = None
    if federation.trajectory == "own":
        clients = range(1, int(federation.clients) + 1)
        rows = [_initial_model(run, material, client)[1] for client in clients]
        own_starts = torch.stack(rows).to(images.device)
    work = Work(
        **_same(training, "optimiser", "loss", "eta_g", "eta_p", "eta_m", "clip_norm"),
        terms=method.objective,
        keeps_memory=training.private_optimiser == "keep",
        trace_every=trace,
    )
    schedule = Schedule(
        **_same(federation, "rounds", "clients_per_round", "evaluate", "evaluate_every"),
        **_same(federation, "evaluate_from", "evaluate_at"),
        **_same(training, "epochs", "batch_size", "refresh"),
    )
    return assemble(
        **_same(method, "rule", "personalisation", "stopping", "sharing", "heads_apart"),
        **_same(federation, "held_out", "global_images", "own_images"),
        **_same(run.conditions, "benchmark_images"),
        seed=run.seed,
        partition=partition,
        pictures=material.pictures,
        images=images,
        model=model,
        first=first,
        private=private,
        work=work,
        schedule=schedule,
        conditions=_conditions(run),
        observers=_observers(run),
        own_starts=own_starts,
    )


def _same(source: Part | Method, *names: str) -> dict[str, Any]:
    """Return keys of a config or of a method that the engine has under the same names."""
    return {name: getattr(source, name) for name in names}


def _conditions(run: Run) -> list[Condition]:
    chosen = [getattr(run.conditions, name) for name in CONDITIONS]
    return [condition for condition in chosen if condition is not None] + [*run.conditions.others]


def _observers(run: Run) -> list[Observer]:
    observers: list[Observer] = []
    if run.federation.shapley:
        observers.append(Shapley(exact=run.federation.shapley is True))
    if run.federation.trajectory is not None:
        observers.append(Trajectory())
    if run.training.save is not None:
        observers.append(ModelSaver(run.training.save))
    return observers


def _initial_model(
    run: Run, material: Material, *number: int
) -> tuple[models.ClientModel, Tensor, Tensor]:
    """Return the model of a run, its first communicated row [d] and its first private row [d_p].

    A mixture of models, such as Ditto's, is made of it later. `number` is that of a further
    initialisation, beside the one that all methods share.
    """
    backbone = material.backbone
    images = material.samples.images
    options = run.method.method.personalisation.adapters
    generator = stream("init", run.seed, *number)
    if backbone is None:
        shape = models.CnnArchitecture(images.shape[2], images.shape[1])
        cnn = models.SmallCnn(shape, material.data.num_classes, **options)
        return cnn, *cnn.initial_values(generator)
    adapters = _same(run.adapters, *models.AdapterSettings.model_fields)
    kind = models.CompiledModel if run.training.kernel == "compiled" else models.CohortModel
    model = kind(
        backbone,
        models.AdapterConfig(**adapters, **options),
        material.data.num_classes,
        device=images.device,
        bfloat16=run.training.precision == "bfloat16",
    )
    first, private = model.initial_values(generator)
    start = run.adapters.start
    if start is None:
        return model, first, private
    if find_start(start.folder) != start:
        raise ValueError(
            f"the checkpoint in {start.folder} was changed since the config was read; start again"
        )
    _require_backbone(start.folder, run.backbone, backbone.sha256)
    loaded = models.load_peft(start.folder)
    rows = models.start_from(loaded, start.folder, model.layout, model.config.scale, first, private)
    return model, *rows


def _require_backbone(folder: str, name: str, sha256: str) -> None:
    """Raise ValueError if a checkpoint is known to be for another backbone."""
    file = Path(folder) / "fedsdg.json"  # `fedsdg export` writes it; other programs do not.
    backbone = read_json(file).get("backbone") if file.is_file() else None
    if backbone is not None and backbone["sha256"] != sha256:
        raise ValueError(
            f"the checkpoint in {folder} was made for the backbone {backbone['name']} (SHA-256 "
            f"{backbone['sha256'][:12]}…), but this is {name} ({sha256[:12]}…); use it with its "
            "own backbone"
        )
