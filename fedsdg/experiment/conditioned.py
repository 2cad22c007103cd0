"""What the conditions of a run make of its samples, its clients and its rule."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedsdg.data.benchmark_set import take_benchmark
from fedsdg.data.datasets import stratified_choice
from fedsdg.data.images import Pictures
from fedsdg.data.partition import TRAIN, VAL, Partition
from fedsdg.experiment.conditions import ComputeConfig, own_code
from fedsdg.experiment.differing import as_seen, groups_of, label_tables, views_of
from fedsdg.experiment.run_config import RunConfig
from fedsdg.federation.cohorts import draw_held_out
from fedsdg.federation.environment.attackers import choose_attackers
from fedsdg.federation.environment.circumstances import Circumstances, Dropout
from fedsdg.federation.environment.timing import Clock
from fedsdg.federation.local_training import Samples
from fedsdg.federation.rounds import Federation
from fedsdg.federation.seen import Seen, class_weights
from fedsdg.rng import stream

#: Skews under which clients hold the classes in shares of their own.
LABEL_SKEWS = ("dirichlet", "classes", "column")


def conditioned_samples(
    run: RunConfig,
    samples: Samples,
    partition: Partition,
    num_classes: int,
    pictures: Pictures | None = None,
) -> tuple[Samples, dict[str, np.ndarray]]:
    """The samples as clients hold them, and what is known of each client [K].

    A label conflict is on all labels of a client, noise, which is drawn on top of it, on training
    and validation labels, the attackers' own, last, on training labels alone. A feature shift is on
    all images of a client, made anew from ``pictures``. The global test set stays as it is. Without
    such conditions the samples are those that came in.
    """
    noise, attack = run.conditions.label_noise, run.conditions.attack
    facts: dict[str, np.ndarray] = {}
    for remark in run.conditions.remarks(run.federation.clients):
        _say(remark)
    group = groups_of(run)
    if group is not None:
        facts["conflicts"], facts["group"] = group >= 0, group
    samples = _with_views(run, samples, partition, pictures)
    train, val = partition.shards(TRAIN), partition.shards(VAL)
    before = samples.labels.cpu().numpy()
    labels = before
    if run.conditions.label_conflict is not None:
        labels, facts["relabelled"] = _renamed(run, labels, partition, num_classes)
    if noise is not None:
        draw = stream("label-noise", run.seed)
        labels, facts["noise_rate"] = own_code(noise, "noisy_labels")(
            labels, train, val, noise.low, noise.high, num_classes, draw
        )
    if attack is not None:
        labels = labels.copy()
        facts["attacker"] = attackers = _attackers(run)
        for client in np.flatnonzero(attackers).tolist():
            own = train[client]
            labels[own] = attack.build().labels(labels[own], num_classes)
    if np.array_equal(labels, before):
        return samples, facts
    return replace(samples, labels=torch.from_numpy(labels).to(samples.labels.device)), facts


def _renamed(
    run: RunConfig, labels: np.ndarray, partition: Partition, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """The labels [n] as every client calls its samples; the share [K] of them that this changes."""
    tables, owner = label_tables(run, num_classes), partition.client
    renamed = labels.copy()
    held = owner >= 0
    renamed[held] = tables[owner[held], labels[held]]
    changed = np.bincount(owner[held], renamed[held] != labels[held], minlength=len(tables))
    shares = changed / np.bincount(owner[held], minlength=len(tables))
    differs = (tables != np.arange(num_classes)).any(axis=1)
    if spared := np.flatnonzero(differs & (shares == 0)).tolist():
        _say(
            f"clients {', '.join(map(str, spared))} conflict, but hold none of the labels that "
            "they name otherwise"
        )
    return renamed, shares


def _with_views(
    run: RunConfig, samples: Samples, partition: Partition, pictures: Pictures | None
) -> Samples:
    """The samples with every client's images as it sees them."""
    views = views_of(run)
    if not any(views):
        return samples
    images, device = samples.images.clone(), samples.images.device
    for client, view in enumerate(views):
        if view is not None:
            own = np.flatnonzero(partition.client == client)
            place = torch.from_numpy(own).to(device)
            images[place] = as_seen(view, _stored(pictures), own, device)
    return replace(samples, images=images)


def _stored(pictures: Pictures | None) -> Pictures:
    if pictures is None:
        raise ValueError(
            "conditions.feature_shift changes images as they are stored, but there are none; load "
            "the data set again"
        )
    return pictures


def seen_samples(
    run: RunConfig,
    samples: Samples,
    partition: Partition,
    global_test: np.ndarray,
    num_classes: int,
    pictures: Pictures | None = None,
) -> tuple[Samples, Seen]:
    """The global test set as each client sees it, and the samples with its views appended.

    ``global_test`` [G]: sample numbers. A client is judged by the labels that it uses, and on
    images as it sees them, of which every view is appended once. Under a label skew images are
    weighted by the client's own shares of the classes (``class_weights``), from all its samples by
    their true labels; else alike.
    """
    true, tables, views = partition.label, label_tables(run, num_classes), views_of(run)
    begins: dict[int, int] = {}
    copies: list[torch.Tensor] = []
    for view in views:
        if view is not None and id(view) not in begins:
            begins[id(view)] = len(samples.labels) + len(copies) * len(global_test)
            device = samples.images.device
            copies.append(as_seen(view, _stored(pictures), global_test, device))
    if copies:
        place = torch.from_numpy(np.tile(true[global_test], len(copies)))
        samples = replace(
            samples,
            images=torch.cat([samples.images, *copies]),
            labels=torch.cat([samples.labels, place.to(samples.labels)]),
        )
    by_class = run.skew.partition("~")[0] in LABEL_SKEWS
    mine = np.arange(len(global_test))
    classes = true[global_test]
    index, labels, weights = [], [], []
    for client, view in enumerate(views):
        held = np.bincount(true[partition.client == client], minlength=num_classes)
        index.append(global_test if view is None else begins[id(view)] + mine)
        labels.append(tables[client, classes])
        weights.append(
            class_weights(held, classes) if by_class else np.full(len(mine), 1 / len(mine))
        )
    return samples, Seen(index, labels, weights)


def _say(sentence: str) -> None:
    print(f"fedsdg: {sentence}", file=sys.stderr, flush=True)


def server_samples(run: RunConfig, partition: Partition) -> tuple[np.ndarray, Partition]:
    """Sample numbers of the server's own samples, none by default; the partition without them.

    ``conditions.benchmark_images`` says how many; they are the same for all methods of a seed.
    """
    size = run.conditions.benchmark_images
    if size is None:
        return np.empty(0, dtype=np.int64), partition
    return take_benchmark(partition, size, stream("evaluation", run.seed, 1))


def evaluated_samples(run: RunConfig, partition: Partition) -> np.ndarray:
    """Sorted sample numbers of the global test set, or of ``federation.global_images`` of it.

    These are stratified by class, and depend on the data set and their number alone. With
    ``partition.test: by-seed`` they are drawn from the stream ``evaluation`` of the seed. Either
    way they are the same for all methods.

    Raises ``ValueError`` where more are asked for than there are.
    """
    whole, wanted = partition.global_test(), run.federation.global_images
    if wanted is None:
        return whole
    fixed = partition.facts.get("test") == "fixed"
    if wanted > len(whole):
        taken = run.conditions.benchmark_images is not None and not fixed
        raise ValueError(
            f"federation.global_images is {wanted}, but the global test set of {run.dataset} "
            f"has {len(whole)} images{' beside the benchmark set' if taken else ''}; "
            "lower it, or set it to null for all of them"
        )
    if not fixed:
        chosen = stream("evaluation", run.seed).choice(len(whole), wanted, replace=False)
        return whole[np.sort(chosen)]
    return whole[stratified_choice(partition.label[whole], wanted, stream("test-split", 0))]


def judged_samples(run: RunConfig, partition: Partition, split: int) -> list[np.ndarray]:
    """Sorted samples of each client's validation or test split that it is judged on.

    All of them, or at most ``federation.own_images``: the first ones in an order drawn from the
    stream ``own-images`` of the seed, so that those of a lower number are among them.
    """
    most, shards = run.federation.own_images, partition.shards(split)
    if most is None:
        return shards
    orders = [stream("own-images", run.seed, split, k).permutation(s) for k, s in enumerate(shards)]
    return [np.sort(order[:most]) for order in orders]


def conditioned_rule(run: RunConfig, rule: Any) -> Any:
    """The rule; with late updates weighed by their age where they are to be compensated."""
    compute = run.conditions.compute
    if compute is None or not compute.compensates:
        return rule
    return own_code(compute, "Compensated")(rule)


def epochs(run: RunConfig) -> int:
    """How many epochs a client trains where time does not limit it."""
    compute = run.conditions.compute
    if compute is not None and compute.local_seconds is not None:
        return compute.max_epochs
    return run.training.epochs


def circumstances(
    run: RunConfig, facts: dict[str, np.ndarray], *, central: bool = False
) -> Circumstances:
    """Build the client-side conditions; ``central``: pooled training, where nothing is sent."""
    conditions = run.conditions
    dropout, compute, clock = conditions.dropout, conditions.compute, None
    held_out = None
    if run.federation.held_out:
        held_out = draw_held_out(run.seed, run.federation.clients, run.federation.held_out)
        facts = {**facts, "held_out": held_out}
    if compute is not None:
        clock = _clock(run, compute)
        facts = {**facts, "speed": clock.speeds}
    quantisation = None
    if conditions.quantisation is not None and not central:
        weak = _weak(run, clock) & ~facts.get("attacker", np.zeros(run.federation.clients, bool))
        make = own_code(conditions.quantisation, "Quantisation")
        quantisation = make(weak, conditions.quantisation.bits)
        facts = {**facts, "weak": weak}
    return Circumstances(
        quantisation=quantisation,
        attack=None if conditions.attack is None else conditions.attack.build(),
        attackers=facts.get("attacker"),
        dropout=None if dropout is None else Dropout(dropout.probability, dropout.lasting),
        clock=clock,
        held_out=held_out,
        facts=facts,
    )


def _attackers(run: RunConfig) -> np.ndarray:
    attack, clients = run.conditions.attack, run.federation.clients
    assert attack is not None
    return choose_attackers(clients, attack.count(clients), stream("attack", run.seed))


def _weak(run: RunConfig, clock: Clock | None) -> np.ndarray:
    """Who sends quantised updates, bool [K]; those of a smaller share are among them."""
    quantised, clients = run.conditions.quantisation, run.federation.clients
    assert quantised is not None
    order = stream("quantisation", run.seed).permutation(clients)
    if quantised.who == "slowest" and clock is not None:
        order = np.argsort(clock.speeds, kind="stable")
    weak = np.zeros(clients, dtype=bool)
    weak[order[: quantised.count(clients)]] = True
    return weak


def _clock(run: RunConfig, compute: ComputeConfig) -> Clock:
    """Speeds are log-uniform between the slowest and the fastest, a client's for good."""
    luck = stream("speed", run.seed).random(run.federation.clients)
    speeds = compute.slowest * (compute.fastest / compute.slowest) ** luck
    return Clock(
        speeds=speeds,
        deadline=compute.deadline,
        arrivals=compute.arrivals,
        late=compute.late,
        max_age=compute.max_age,
        local_seconds=compute.local_seconds,
    )


def require_time(made: Federation) -> None:
    """Raise ``ValueError`` where no client of a federation could ever send an update in time."""
    clock, central = made.circumstances.clock, made.pooling.central
    if clock is None:
        return
    out = made.circumstances.held_out
    clients = np.arange(made.num_clients) if out is None else np.flatnonzero(~out)
    if central:
        clients = clients[:1]  # stands for the one place
    batches, epochs = made.batches_per_epoch(clients), made.schedule.epochs
    budget, fit = made.budget(clients), clock.steps_that_fit(clients)
    if budget is not None and fit is not None:
        if (budget == 0).any(axis=1).all():
            most = int(np.minimum(fit, epochs * batches).max())
            raise ValueError(
                f"conditions.compute.local_seconds = {clock.local_seconds:g} gives each client at "
                f"most {most} local steps in a round, but an update takes {budget.shape[1]} or "
                "more; raise it, max_epochs or the clients' speeds"
            )
        return
    if central:
        fewest = np.sort(made.train_sizes)[: made.schedule.clients_per_round].sum(keepdims=True)
        batches = made.batches_of(fewest)
    least = sum(stage.epochs if stage.least is None else stage.least for stage in made.stages.all)
    soonest = float((least * batches / clock.speeds[clients]).min())
    if clock.deadline is not None and soonest > clock.deadline:
        raise ValueError(
            f"conditions.compute.deadline is {clock.deadline} simulated seconds, but the "
            f"soonest update takes {soonest:.3g}; raise the deadline or the clients' speeds"
        )
