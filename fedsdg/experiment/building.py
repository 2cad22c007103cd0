"""A run's federation, put together from its config."""

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
        optimiser=training.optimiser,
        loss=training.loss,
        eta_g=training.eta_g,
        eta_p=training.eta_p,
        eta_m=training.eta_m,
        clip_norm=training.clip_norm,
        terms=method.objective,
        keeps_memory=training.private_optimiser == "keep",
        trace_every=trace,
    )
    schedule = Schedule(
        rounds=federation.rounds,
        clients_per_round=federation.clients_per_round,
        epochs=training.epochs,
        batch_size=training.batch_size,
        evaluate_every=federation.evaluate_every,
        evaluate_from=federation.evaluate_from,
        evaluate_at=federation.evaluate_at,
        evaluate=federation.evaluate,
        refresh=training.refresh,
    )
    return assemble(
        seed=run.seed,
        partition=partition,
        pictures=material.pictures,
        images=material.samples.images,
        model=model,
        first=first,
        private=private,
        rule=method.rule,
        work=work,
        schedule=schedule,
        personalisation=method.personalisation,
        stopping=method.stopping,
        sharing=method.sharing,
        conditions=_conditions(run),
        observers=_observers(run),
        held_out=federation.held_out,
        global_images=federation.global_images,
        own_images=federation.own_images,
        benchmark_images=run.conditions.benchmark_images,
        heads_apart=method.heads_apart,
        own_starts=initial_models_of_clients(run, material),
    )


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
