"""A run's federation, put together from what its config names."""

import torch
from torch import Tensor

from fedsdg.data.partition import Partition
from fedsdg.experiment.building import _plain_model, method_of
from fedsdg.experiment.material import Material, require_test_set
from fedsdg.experiment.run_config import RunConfig
from fedsdg.methods.plugins import build_choice
from fedsdg.next_federation.assembly import assemble
from fedsdg.next_federation.bridge import new_part
from fedsdg.next_federation.conditions.attack import Attackers
from fedsdg.next_federation.conditions.condition import Condition
from fedsdg.next_federation.observers.observer import Observer
from fedsdg.next_federation.observers.shapley import Shapley
from fedsdg.next_federation.observers.trajectory import Trajectory
from fedsdg.next_federation.saved_models import ModelSaver
from fedsdg.next_federation.setup import Schedule, Setup
from fedsdg.next_federation.tasks import Work

BEFORE_ATTACK = ("label_conflict", "feature_shift", "label_noise")
AFTER_ATTACK = ("compute", "quantisation", "dropout")


def build(
    run: RunConfig, material: Material, partition: Partition, *, trace_every: int = 0
) -> Setup:
    """Put a run's federation together from its config.

    Args:
        run: The run.
        material: Images and backbone.
        partition: Which client holds which sample.
        trace_every: Print losses and penalties of each such batch; 0: none.
    """
    require_test_set(partition, material)
    method = method_of(run)
    federation = run.federation
    training = run.training
    # The model of a personalisation; mixtures of models are made of it later.
    model, first, private = _plain_model(run, material, method.personalisation)
    parts = {}
    for key in ("optimiser", "loss"):
        choice = build_choice(key, getattr(training, key), run.borrowed.get(key))
        parts[key] = new_part(choice)
    work = Work(
        optimiser=parts["optimiser"],
        loss=parts["loss"],
        eta_g=training.eta_g,
        eta_p=training.eta_p,
        eta_m=training.eta_m,
        clip_norm=training.clip_norm,
        terms=tuple(new_part(term) for term in method.objective),
        keeps_memory=training.private_optimiser == "keep",
        trace_every=trace_every,
    )
    schedule = Schedule(
        rounds=federation.rounds,
        clients_per_round=federation.clients_per_round,
        epochs=training.epochs,
        batch_size=training.batch_size,
        evaluate_every=federation.evaluate_every,
        evaluate_from=federation.evaluate_from,
        evaluate_at=federation.evaluate_at,
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
        personalisation=new_part(method.personalisation),
        stopping=None if method.stopping is None else new_part(method.stopping),
        sharing=new_part(method.pooling),
        conditions=conditions_of(run),
        observers=observers_of(run),
        held_out=federation.held_out,
        global_images=federation.global_images,
        own_images=federation.own_images,
        benchmark_images=run.conditions.benchmark_images,
        heads_apart=method.heads_apart,
        own_starts=own_starts(run, material),
    )


def conditions_of(run: RunConfig) -> list[Condition]:
    """Return the conditions of a run, in the order in which they change the data."""
    given = run.conditions
    conditions = [new_part(getattr(given, name)) for name in BEFORE_ATTACK if getattr(given, name)]
    if given.attack is not None:
        conditions.append(Attackers(new_part(given.attack.build()), given.attack.share))
    conditions += [new_part(getattr(given, name)) for name in AFTER_ATTACK if getattr(given, name)]
    return conditions


def observers_of(run: RunConfig) -> list[Observer]:
    """Return what looks at each round of a run."""
    observers: list[Observer] = []
    if run.federation.shapley:
        observers.append(Shapley(exact=run.federation.shapley is True))
    if run.federation.trajectory is not None:
        observers.append(Trajectory())
    if run.training.save is not None:
        observers.append(ModelSaver(run.training.save))
    return observers


def own_starts(run: RunConfig, material: Material) -> Tensor | None:
    """Return an initialisation for every client [K, d], if the run asks for it."""
    if run.federation.trajectory != "own":
        return None
    personalisation = method_of(run).personalisation
    rows = []
    for number in range(1, run.federation.clients + 1):
        rows.append(_plain_model(run, material, personalisation, number)[1])
    return torch.stack(rows).to(material.samples.images.device)
