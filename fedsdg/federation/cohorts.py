"""Who trains when, and on which batches: drawn from named streams, equal for all methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedsdg.federation.client_shares import clients_in
from fedsdg.rng import stream


@dataclass(frozen=True)
class Shards:
    """Sample indices of each client's three splits, and of the global test set.

    ``benchmark`` are samples that the server holds; no client and no test has any of them.
    ``test_sizes`` [K]: the test samples of every client, where it is judged on a part of them.
    """

    train: Sequence[np.ndarray]
    val: Sequence[np.ndarray]
    test: Sequence[np.ndarray]
    global_test: np.ndarray
    benchmark: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    test_sizes: np.ndarray | None = None


def draw_cohort(
    seed: int, round_: int, num_clients: int, size: int, held_out: np.ndarray | None = None
) -> np.ndarray:
    """The clients of one round, [size] int64, sorted, drawn without replacement.

    ``held_out``: bool [K], who is never drawn; None: nobody.
    """
    generator = stream("cohort", seed, round_)
    if held_out is None:  # nothing of the length K: a round costs as much with many clients
        drawn = generator.choice(num_clients, size=size, replace=False)
    else:
        there = np.flatnonzero(~held_out)
        drawn = there[generator.choice(len(there), size=size, replace=False)]
    return np.sort(drawn).astype(np.int64)


def draw_held_out(seed: int, num_clients: int, share: float) -> np.ndarray:
    """Who never trains, bool [K]: a share of the clients, those of a smaller one among them."""
    held_out = np.zeros(num_clients, dtype=bool)
    held_out[
        stream("held-out", seed).permutation(num_clients)[: clients_in(share, num_clients)]
    ] = True
    return held_out


def draw_batches(
    indices: np.ndarray, *, batch_size: int | None, epochs: int, generator: np.random.Generator
) -> list[np.ndarray]:
    """Mini-batches of sample indices for one client: each epoch a new order, the last batch kept.

    ``indices`` [n]; the result has epochs · ⌈n / batch_size⌉ batches and every epoch holds every
    sample exactly once. ``batch_size`` None takes all samples at once.
    """
    size = max(1, len(indices)) if batch_size is None else batch_size
    batches: list[np.ndarray] = []
    for _ in range(epochs):
        order = generator.permutation(indices)
        batches.extend(order[i : i + size] for i in range(0, len(order), size))
    return batches


def cohort_batches(
    shards: Sequence[np.ndarray],
    clients: Sequence[int],
    *,
    purpose: str,
    seed: int,
    round_: int,
    batch_size: int | None,
    epochs: int,
) -> list[list[np.ndarray]]:
    """The batches of every client of a cohort; each client has a stream of its own.

    A client's batches therefore do not depend on who else was drawn. ``purpose`` is the stream:
    ``batches`` for training, ``evaluation`` for what happens only at evaluation.
    """
    return [
        draw_batches(
            shards[client],
            batch_size=batch_size,
            epochs=epochs,
            generator=stream(purpose, seed, round_, int(client)),
        )
        for client in clients
    ]


def samples_for_gates(
    train: Sequence[np.ndarray], labels: np.ndarray, seed: int, every: int = 4
) -> np.ndarray:
    """Choose the training samples that teach gates alone, bool [n]: a stratified quarter.

    A client's samples are sorted by label, equal ones at random, and every fourth is taken from a
    random place on; so of c samples of a label c/4 are taken, rounded down or up, and at least one
    of a client that has two or more samples.

    Args:
        train: The training samples of every client.
        labels: The label of every sample, [n].
        seed: Of the run; every client draws from a stream of its own.
        every: The inverse of the share.
    """
    chosen = np.zeros(len(labels), dtype=bool)
    for client, own in enumerate(train):
        generator = stream("gate-samples", seed, client)
        order = np.lexsort((generator.permutation(len(own)), labels[own]))
        if len(own) > 1:
            chosen[own[order[generator.integers(min(every, len(own))) :: every]]] = True
    return chosen
