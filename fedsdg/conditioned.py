"""What the conditions of a run make of its samples, its clients and its rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedsdg.conditions import ComputeConfig
from fedsdg.config import RunConfig
from fedsdg.data.benchmark_set import take_benchmark
from fedsdg.data.partition_record import TRAIN, VAL, Partition
from fedsdg.data.skew import parse_skew
from fedsdg.federation.attackers import choose_attackers
from fedsdg.federation.circumstances import Circumstances, Dropout
from fedsdg.federation.cohorts import Shards
from fedsdg.federation.local_training import Samples
from fedsdg.federation.seen import Seen
from fedsdg.federation.timing import Clock
from fedsdg.rng import stream


def conditioned_samples(
    run: RunConfig, samples: Samples, partition: Partition, num_classes: int
) -> tuple[Samples, dict[str, np.ndarray]]:
    """The samples with the labels that clients hold, and what is known of each client [K].

    Noise is on training and validation labels, the attackers' own on training labels alone; tests
    keep theirs. Without such conditions the samples are those that came in.
    """
    noise, attack = run.conditions.label_noise, run.conditions.attack
    facts: dict[str, np.ndarray] = {}
    if partition.client_domain is not None:
        facts["domain"] = partition.client_domain
    if noise is None and attack is None:
        return samples, facts
    train, val = partition.shards(TRAIN), partition.shards(VAL)
    before = samples.labels.cpu().numpy()
    labels = before
    if noise is not None:
        draw = stream("label-noise", run.seed)
        labels, facts["noise_rate"] = noise.part.resolve()(
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


def server_samples(run: RunConfig, partition: Partition) -> dict[str, np.ndarray]:
    """The samples that no client has: ``global_test``, to evaluate on, and the server's own.

    The server's ``benchmark`` is taken out of the global test set first. Of what is left, all or
    ``federation.global_images`` are evaluated on, drawn from the stream ``evaluation`` of the seed,
    so that they are the same for all methods.
    Raises ``ValueError`` where more are asked for than there are.
    """
    left, size = partition.global_test(), run.conditions.benchmark_images
    benchmark = left[:0]
    if size is not None:
        benchmark, left = take_benchmark(partition, size, stream("evaluation", run.seed, 1))
    wanted = run.federation.global_images
    if wanted is not None:
        if wanted > len(left):
            raise ValueError(
                f"federation.global_images is {wanted}, but the global test set of {run.dataset} "
                f"has {len(left)} images{'' if size is None else ' beside the benchmark set'}; "
                "lower it, or set it to null for all of them"
            )
        chosen = stream("evaluation", run.seed).choice(len(left), wanted, replace=False)
        left = left[np.sort(chosen)]
    return {"global_test": left, "benchmark": benchmark}


def seen_by_clients(run: RunConfig, partition: Partition, global_test: np.ndarray) -> Seen:
    """The global test set [G] as each client sees it.

    Under label skew it is weighted by the client's class shares: of the G_c images of class c each
    weighs share_c / G_c, scaled to sum 1. Under other skews all images weigh the same.
    Raises ``ValueError`` where a client has no class of which an image is left to evaluate on.
    """
    clients, labels = partition.num_clients, partition.label[global_test]
    weights = [np.full(len(labels), 1 / len(labels))] * clients
    if parse_skew(run.skew).kind in ("dirichlet", "mixed", "classes"):
        there = np.bincount(labels, minlength=partition.num_classes)
        counts = partition.class_counts() * (there > 0)
        for client in np.flatnonzero(counts.sum(1) == 0).tolist():
            raise ValueError(
                f"client {client} of {run.dataset} has no class of which an image is left in the "
                "global test set; raise federation.global_images"
            )
        shares = counts / counts.sum(1, keepdims=True) / np.maximum(there, 1)
        weights = list(shares[:, labels])
    return Seen([global_test] * clients, [labels] * clients, weights)


def conditioned_rule(run: RunConfig, rule: Any) -> Any:
    """The rule; with late updates weighed by their age where they are to be compensated."""
    compute = run.conditions.compute
    if compute is None or not compute.compensates:
        return rule
    return compute.part.resolve()(rule)


def epochs(run: RunConfig) -> int:
    """How many epochs a client trains at most."""
    compute = run.conditions.compute
    if compute is not None and compute.local_seconds is not None:
        return compute.max_epochs
    return run.training.epochs


def circumstances(run: RunConfig, shards: Shards, facts: dict[str, np.ndarray]) -> Circumstances:
    """What befalls the clients of a run.

    Raises ``ValueError`` for a deadline that no client can ever meet.
    """
    conditions = run.conditions
    dropout, compute, clock = conditions.dropout, conditions.compute, None
    if compute is not None:
        clock = _clock(run, compute)
        facts = {**facts, "speed": clock.speeds}
        _require_possible(run, compute, clock, shards)
    return Circumstances(
        attack=None if conditions.attack is None else conditions.attack.build(),
        attackers=facts.get("attacker"),
        dropout=None if dropout is None else Dropout(dropout.probability, dropout.lasting),
        clock=clock,
        facts=facts,
    )


def _attackers(run: RunConfig) -> np.ndarray:
    attack, clients = run.conditions.attack, run.federation.clients
    assert attack is not None
    return choose_attackers(clients, attack.count(clients), stream("attack", run.seed))


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


def _require_possible(run: RunConfig, compute: ComputeConfig, clock: Clock, shards: Shards) -> None:
    steps = [
        clock.steps_that_fit(k, epochs(run) * -(-len(own) // (run.training.batch_size or len(own))))
        for k, own in enumerate(shards.train)
    ]
    soonest = float((np.array(steps) / clock.speeds).min())
    if compute.deadline is not None and soonest > compute.deadline:
        raise ValueError(
            f"conditions.compute.deadline is {compute.deadline} simulated seconds, but the "
            f"soonest update takes {soonest:.3g}; raise the deadline or the clients' speeds"
        )
