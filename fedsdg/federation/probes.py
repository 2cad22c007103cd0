"""What clients measure beside training for a rule that requests it (`UploadRequest`)."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedsdg.aggregation.types import UploadRequest
from fedsdg.federation.batches import all_batches
from fedsdg.federation.client_axis import select
from fedsdg.federation.micro_batches import rows_per_pass
from fedsdg.federation.scoring import mean_losses
from fedsdg.federation.setup import Server, Setup
from fedsdg.federation.tasks import Results, Tasks
from fedsdg.models import leaves
from fedsdg.rng import stream

MOST = 128
"""Samples in one backward pass of the Fisher information; larger passes are no faster."""


@dataclass(frozen=True)
class Measured:
    """What M clients have measured."""

    rows: dict[str, Tensor] = field(default_factory=dict)
    "[M, width] by name"
    models_down: int = 0
    "models that each client has downloaded for it"
    gradients: np.ndarray | int = 0
    "[M] batches of which each has taken gradients"


def measure(
    setup: Setup, server: Server, request: UploadRequest, t: int, tasks: Tasks, results: Results
) -> Measured:
    """Return what the clients of round t measure for one request.

    Args:
        setup: The federation.
        server: The server before the round.
        request: What is measured.
        t: The round.
        tasks: What each of M clients trained.
        results: What it returned.
    """
    if request.kind == "scores":
        return model_scores(setup, server, request, t, tasks)
    if request.kind == "losses":
        return global_losses(setup, tasks)
    return fisher_information(setup, tasks, results)


def model_scores(
    setup: Setup, server: Server, request: UploadRequest, t: int, tasks: Tasks
) -> Measured:
    """Return `scores` [M, C], each client's training loss under models of the server.

    A client tries all, or `request.sample` models other than its own; the rest is NaN.
    """
    if request.rounds is not None and t > request.rounds:
        return Measured()
    count = len(server.models)
    scores = server.models.new_full((len(tasks), count), torch.nan, dtype=torch.float64)
    tried = np.arange(count)
    for row, client in enumerate(tasks.clients.tolist()):
        if request.sample is not None:
            others = np.delete(np.arange(count), client)
            generator = stream("probe", setup.data.seed, t, client)
            size = min(request.sample, len(others))
            tried = np.sort(generator.choice(others, size, replace=False))
        place = torch.from_numpy(tried).to(scores.device)
        shards = [setup.data.train[client]] * len(tried)
        private = tasks.private[row].expand(len(tried), -1)
        scores[row, place] = mean_losses(setup, shards, server.models[place], private)
    # Without a sample its own is among those to try, or follows from them.
    return Measured({"scores": scores}, models_down=len(tried) - (request.sample is None))


def global_losses(setup: Setup, tasks: Tasks) -> Measured:
    """Return `global_loss` [M, 1], of downloaded models on clients' training samples."""
    shards = [setup.data.train[client] for client in tasks.clients]
    return Measured(
        {"global_loss": mean_losses(setup, shards, tasks.start, tasks.private)[:, None]}
    )


def fisher_information(setup: Setup, tasks: Tasks, results: Results) -> Measured:
    """Return I_k = sum_i w_i (grad l_i)^2 / sum_i w_i at theta_k, and I_k theta_k (FedCurv).

    [M, d] each, of the communicated row; w are the weights of samples in the loss.
    """
    shards = [setup.data.train[client] for client in tasks.clients]
    batches = setup.batches_per_epoch(tasks.clients)
    if tasks.limits is not None:
        batches = tasks.limits[:, len(setup.stages) - 1]
        pairs = zip(tasks.batches, batches.tolist(), strict=True)
        in_time = [all_batches(epochs)[:most] for epochs, most in pairs]
        shards = [np.sort(np.concatenate(given)) for given in in_time]
    index = np.concatenate(shards)
    owner = np.repeat(np.arange(len(shards)), [len(shard) for shard in shards])
    mass = setup.samples.masses(index)
    fisher = torch.zeros_like(results.theta)
    size = min(MOST, rows_per_pass(setup, setup.layout, 1))
    for begin in range(0, len(index), size):
        chunk = slice(begin, begin + size)
        squares = _squared_gradients(setup, results, index[chunk], owner[chunk], mass[chunk])
        for row in np.unique(owner[chunk]):
            fisher[row] += squares[torch.from_numpy(owner[chunk] == row)].sum(0)
    fisher /= torch.from_numpy(np.bincount(owner, mass)).to(fisher)[:, None]
    return Measured({"fisher": fisher, "fisher_theta": fisher * results.theta}, gradients=batches)


def _squared_gradients(
    setup: Setup, results: Results, index: np.ndarray, owner: np.ndarray, mass: np.ndarray
) -> Tensor:
    """Return mass times the squared gradient [n, d] of each sample's loss at its owner's model.

    Every sample is a client of its own for the length of one backward pass.
    """
    theta = select(results.theta, owner)
    gradients = torch.zeros_like(theta)
    named = leaves(theta, gradients, setup.layout.communicated)
    named |= leaves(select(results.private, owner), None, setup.layout.private)
    images = select(setup.samples.images, index)
    labels = select(setup.samples.labels, index)
    # The loss comes multiplied by its weight w, whose square would count w twice.
    divisors = torch.from_numpy(mass).sqrt().to(labels.device)
    counts = [1] * len(index)
    weights = setup.model.effective_weights(named)
    losses = setup.model.losses(images, labels, divisors, counts, weights, setup.work.loss)
    losses.sum().backward()
    return gradients.square_()
