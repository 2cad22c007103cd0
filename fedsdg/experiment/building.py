"""A run's federation, put together from its config."""

from typing import Any

from fedsdg.config.run import Run
from fedsdg.data.partition import Partition
from fedsdg.experiment.initial_model import initial_model, initial_models_of_clients
from fedsdg.experiment.material import Material
from fedsdg.experiment.saved_models import ModelSaver
from fedsdg.federation.assembly import assemble
from fedsdg.federation.conditions.condition import Condition
from fedsdg.federation.observers.observer import Observer
from fedsdg.federation.observers.shapley import Shapley
from fedsdg.federation.observers.trajectory import Trajectory
from fedsdg.federation.setup import Schedule, Setup
from fedsdg.federation.tasks import Work
from fedsdg.methods.method import Method
from fedsdg.parts import Part

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
    model, first, private = initial_model(run, material)
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
        images=material.samples.images,
        model=model,
        first=first,
        private=private,
        work=work,
        schedule=schedule,
        conditions=_conditions(run),
        observers=_observers(run),
        own_starts=initial_models_of_clients(run, material),
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
