"""Local training of a whole cohort: all batches, in two phases, or until a rule says stop."""

from __future__ import annotations

import itertools

import numpy as np

from fedsdg.federation.clients import Clients, LocalResult
from fedsdg.federation.cohort_training import CohortTraining
from fedsdg.federation.local_work import LocalWork, Model, Samples
from fedsdg.federation.steps import by_epochs
from fedsdg.models.parameters import Layout


def train_clients(
    model: Model, layout: Layout, samples: Samples, clients: Clients, work: LocalWork
) -> LocalResult:
    """Train M clients, each on its own batches, from ``clients.begin`` and ``clients.private``.

    Per step and client: the mean loss of its batch, plus the terms' gradients; the gradient over
    all of the client's parameters is clipped to ``clip_norm``; the terms may then correct it; the
    optimiser moves the client. Inputs are not modified.

    Raises ``FloatingPointError`` when a client's loss was not finite, and ``ValueError`` when a
    client has no batch.
    """
    for k, own in enumerate(clients.batches):
        if not own:
            raise ValueError(f"{clients.name(k)} has no training batch; give every client a sample")
    training = CohortTraining(model, layout, samples, clients, work)
    if work.stopping is not None:
        _until_inexact(training, clients)
    elif work.private_first:
        _in_two_phases(training, clients, work.private_first)
    else:
        training.train(clients.batches, work.moves)
    return training.result()


def _in_two_phases(training: CohortTraining, clients: Clients, first: int) -> None:
    """``first`` epochs of the private row with the shared one fixed, then the reverse."""
    epochs = [by_epochs(own) for own in clients.batches]
    for moves, chosen in (("private", slice(first)), ("shared", slice(first, None))):
        training.train([list(itertools.chain(*own[chosen])) for own in epochs], (moves,))


def _until_inexact(training: CohortTraining, clients: Clients) -> None:
    """Epoch by epoch, until ‖∇h(w; w_t)‖ ≤ γ ‖∇h(w_t; w_t)‖ or no epoch is left."""
    if clients.gamma is None:
        raise ValueError("a stopping rule needs every client's gamma; give Clients(gamma=...)")
    epochs = [by_epochs(own) for own in clients.batches]
    limits = clients.gamma * training.gradient_norms([own[0] for own in epochs])
    going = np.ones(len(clients), dtype=bool)
    for epoch in range(max(map(len, epochs))):
        training.train([e[epoch] if on else [] for e, on in zip(epochs, going, strict=True)])
        # Whoever has no epoch left stops in any case, and need not be looked at.
        going &= np.array([epoch + 1 < len(own) for own in epochs])
        if not going.any():
            break
        norms = training.gradient_norms(
            [e[0] if on else [] for e, on in zip(epochs, going, strict=True)]
        )
        going &= norms > limits
