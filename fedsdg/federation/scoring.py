"""What models predict for samples, many clients' models in one pass."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsdg.federation.batches import split_batches
from fedsdg.federation.micro_batches import halving
from fedsdg.federation.setup import Setup
from fedsdg.models import block_views

CHUNK = 1024
"""Samples in one pass."""
CPU_NUMBERS = 2**19
"""Numbers of the images in one pass on a CPU, so that it stays in the cache."""
CLIENTS_PER_PASS = 25
"""Clients whose merged weights exist at the same time."""


@torch.no_grad()
def merged_weights(setup: Setup, theta: Tensor, private_rows: Tensor, *, private: bool) -> Any:
    """Return the weights of n clients, as the model's `forward` takes them.

    Args:
        setup: The federation.
        theta: [n, d] communicated rows.
        private_rows: [n, d_p].
        private: Whether predictions use the private rows.
    """
    shared = block_views(theta.contiguous(), setup.layout.communicated)
    own = block_views(private_rows.contiguous(), setup.layout.private)
    return setup.model.effective_weights({**shared, **own}, private=private)


@torch.no_grad()
def evaluate_logits(
    setup: Setup,
    weights: Any,
    lists: Sequence[np.ndarray],
    function: Callable[[Tensor, Tensor], Tensor],
) -> list[Tensor]:
    """Return `function(logits, labels)` of samples, client by client, a chunk at a time.

    Args:
        setup: The federation.
        weights: Of n clients, from `merged_weights`.
        lists: Sample numbers for each of the n clients.
        function: Of logits [B, C] and labels [B].

    Raises:
        MemoryError: Not even one sample fits.
    """
    samples = setup.samples
    index = torch.from_numpy(np.concatenate(lists)).to(samples.labels.device)
    owner = np.repeat(np.arange(len(lists)), [len(numbers) for numbers in lists])

    def in_chunks(size: int) -> list[Tensor]:
        values = []
        for chunk, owners in zip(index.split(size), split_batches(owner, size), strict=True):
            counts = np.bincount(owners, minlength=len(lists)).tolist()
            logits = setup.model.forward(samples.images[chunk], counts, weights)
            values.append(function(logits, samples.labels[chunk]))
        return values

    size = CHUNK
    if samples.images.device.type == "cpu":
        size = min(size, max(1, CPU_NUMBERS // samples.images[0].numel()))
    values, _ = halving(in_chunks, size, "the evaluation")
    return values


def is_right(logits: Tensor, labels: Tensor) -> Tensor:
    """Return which of B samples get the most of their scores [B, C] for their label, bool [B]."""
    return logits.argmax(1) == labels


@torch.no_grad()
def mean_losses(
    setup: Setup, shards: Sequence[np.ndarray], theta: Tensor, private_rows: Tensor
) -> Tensor:
    """Return the mean training loss of each of n models on its own samples, float64 [n].

    Args:
        setup: The federation.
        shards: Sample numbers for each model.
        theta: [n, d].
        private_rows: [n, d_p].
    """
    loss = partial(setup.work.loss, reduction="none")
    losses: list[Tensor] = []
    for some in split_batches(np.arange(len(shards)), CLIENTS_PER_PASS):
        weights = merged_weights(setup, theta[some], private_rows[some], private=True)
        losses += evaluate_logits(setup, weights, [shards[k] for k in some], loss)
    owner = np.repeat(np.arange(len(shards)), [len(shard) for shard in shards])
    sums = np.bincount(owner, torch.cat(losses).double().cpu().numpy(), minlength=len(shards))
    mass = setup.samples.masses(np.concatenate(shards))
    means = sums / np.bincount(owner, mass, minlength=len(shards))
    return torch.from_numpy(means).to(theta.device)
