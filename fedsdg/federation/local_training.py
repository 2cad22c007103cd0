"""Local training of a whole cohort: all batches, in two phases, or until a rule says stop.

Where clients train by the clock, ``Clients.budget`` says how many steps each stage may take.
"""

from __future__ import annotations

import itertools

import numpy as np

from fedsdg.federation.clients import Clients, LocalResult
from fedsdg.federation.cohort_training import CohortTraining
from fedsdg.federation.local_work import LocalWork, Model, Samples
from fedsdg.federation.steps import by_epochs
from fedsdg.models.interface import HasLosses
from fedsdg.models.parameters import Layout
from fedsdg.models.rounding import processor_independent

#: Steps of a client that does not train by the clock.
_NO_LIMIT = 2**62


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
    with processor_independent(isinstance(model, HasLosses)):
        if work.stopping is not None:
            _until_inexact(training, clients)
        elif work.private_first:
            _in_two_phases(training, clients, work.private_first)
        elif work.interleaved:
            _interleaved(training, clients)
        else:
            training.train(clients.within(0, clients.batches), (work.moves,))
    return training.result()


def _in_two_phases(training: CohortTraining, clients: Clients, first: int) -> None:
    """``first`` epochs of the private row with the shared one fixed, then the reverse."""
    epochs = [by_epochs(own) for own in clients.batches]
    phases = (("private", slice(first)), ("shared", slice(first, None)))
    for stage, (moves, chosen) in enumerate(phases):
        batches = [list(itertools.chain(*own[chosen])) for own in epochs]
        training.train(clients.within(stage, batches), ((moves,),))


def _interleaved(training: CohortTraining, clients: Clients) -> None:
    """With every batch a step of the private row, then one of the shared row."""
    both = clients.within(1, clients.batches)
    training.train(both, (("private",), ("shared",)))
    # A client that has no time for the shared row trains its private row alone.
    private = clients.within(0, clients.batches)
    alone = [[] if shared else own for own, shared in zip(private, both, strict=True)]
    training.train(alone, (("private",),))


def _until_inexact(training: CohortTraining, clients: Clients) -> None:
    """Epoch by epoch, until ‖∇h(w; w_t)‖ ≤ γ ‖∇h(w_t; w_t)‖, or until no epoch or step is left.

    A gradient is measured only where a step can follow, for elsewhere it decides nothing. So the
    first one takes time for it, an epoch, the second one and a step.
    """
    if clients.gamma is None:
        raise ValueError("a stopping rule needs every client's gamma; give Clients(gamma=...)")
    epochs = [by_epochs(own) for own in clients.batches]
    per_epoch = np.array([len(own[0]) for own in epochs])
    left = np.full(len(clients), _NO_LIMIT) if clients.budget is None else clients.budget[:, 0]
    looks = left > 3 * per_epoch
    limits = clients.gamma * _norms(training, epochs, looks)
    left = left - looks * per_epoch
    going = left > 0
    for epoch in range(max(map(len, epochs))):
        each = zip(epochs, going, left, strict=True)
        batches = [own[epoch][:steps] if on else [] for own, on, steps in each]
        training.train(batches)
        left = left - [len(own) for own in batches]
        # A client that has no epoch left stops in any case, and need not be looked at.
        going &= (left > 0) & [epoch + 1 < len(own) for own in epochs]
        if not going.any():
            break
        looked = going & looks & (left > per_epoch)
        norms = _norms(training, epochs, looked)
        left = left - looked * per_epoch
        going &= ~looked | (norms > limits)


def _norms(
    training: CohortTraining, epochs: list[list[list[np.ndarray]]], which: np.ndarray
) -> np.ndarray:
    """The norms of these clients' full gradients, over the batches of an epoch."""
    return training.gradient_norms(
        [own[0] if looked else [] for own, looked in zip(epochs, which, strict=True)]
    )
