"""The samples on which clients train, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from torch import Tensor

from fedsdg.models import even_pays
from fedsdg.rng import stream

if TYPE_CHECKING:
    from fedsdg.federation.tasks import Samples

Batches = list[np.ndarray]
"""Sample numbers of the batches of one client."""
Epochs = list[Batches]
"""The batches of one client, epoch by epoch."""


def draw_epochs(
    indices: np.ndarray, size: int | None, epochs: int, generator: np.random.Generator
) -> Epochs:
    """Draw the mini-batches of one client: each epoch holds all samples in a new order.

    Args:
        indices: [n] sample numbers.
        size: Samples of a batch, of which the last of an epoch may have fewer; None: all.
        epochs: Number of epochs.
        generator: Source of randomness.
    """
    orders = [generator.permutation(indices) for _ in range(epochs)]
    return [split_batches(order, size) for order in orders]


def split_batches(order: np.ndarray, size: int | None) -> Batches:
    """Return samples [n] as batches of a size, of which the last may have fewer; None: all."""
    step = size or max(1, len(order))
    return [order[begin : begin + step] for begin in range(0, len(order), step)]


def pooled_batches(pool: np.ndarray, counts: list[int], size: int | None, seed: int) -> Epochs:
    """Return the batches of a round of central training, as one epoch.

    All samples are visited again and again, each time in a new order; a round takes the next ones.

    Args:
        pool: [n] all training samples.
        counts: Samples of each round so far, this one last.
        size: Samples of a batch; None: all of the round.
        seed: That of the run.
    """
    begin = sum(counts[:-1])
    end = begin + counts[-1]
    first = begin // len(pool)
    last = -(-end // len(pool))
    orders = [stream("batches", seed, 0, visit).permutation(pool) for visit in range(first, last)]
    return [split_batches(np.concatenate(orders)[begin % len(pool) :][: counts[-1]], size)]


def all_batches(epochs: Epochs) -> Batches:
    """Return the batches of all epochs, one epoch after the other."""
    return [batch for epoch in epochs for batch in epoch]


def longest_first(batches: Sequence[Batches]) -> np.ndarray:
    """Return the positions of clients with batches, by falling number, equals in their order."""
    counts = np.array([len(given) for given in batches], dtype=np.int64)
    order = np.argsort(-counts, kind="stable")
    return order[counts[order] > 0]


@dataclass(frozen=True)
class Steps:
    """The samples of a clients, laid out step by step and sent to the device at once.

    Clients stand longest first, so those still training are the first ones. On a GPU the batches
    of a step are padded to equal length if that pays; padding has an infinite mass.
    """

    counts: np.ndarray
    "[a] steps of each client"
    drawn: np.ndarray
    "[a] samples of each client"
    sizes: list[list[int]]
    "by step: the images of each client that still trains"
    index: Tensor
    "[n] sample numbers"
    mass: Tensor
    "[n] float64, what the loss of each image is divided by, so that losses sum to batch means"
    owner: np.ndarray
    "[n] step * a + client"

    @classmethod
    def plan(cls, batches: Sequence[Batches], samples: Samples, *, whole: bool = False) -> Self:
        """Lay out batches.

        Args:
            batches: Of each of a clients, longest first.
            samples: All samples; their device is that of the steps.
            whole: Whether all batches of a client are one, so that losses sum to the mean over it.
        """
        counts = np.array([len(given) for given in batches])
        clients = len(counts)
        by_step = [[b[step] for b in batches if len(b) > step] for step in range(counts.max())]
        device = samples.labels.device
        if device.type != "cpu":
            by_step = [_padded(now) for now in by_step]
        sizes = [[len(batch) for batch in now] for now in by_step]
        pieces = [batch for now in by_step for batch in now]
        index = np.concatenate(pieces)
        real = index >= 0
        cells = [step * clients + k for step, now in enumerate(sizes) for k in range(len(now))]
        owner = np.repeat(cells, [len(batch) for batch in pieces])
        shares = samples.masses(index) * real
        group = owner % clients if whole else owner
        steps = cls(
            counts=counts,
            drawn=np.bincount(owner[real] % clients, minlength=clients),
            sizes=sizes,
            index=torch.from_numpy(index),
            mass=torch.from_numpy(np.where(real, np.bincount(group, shares)[group], np.inf)),
            owner=owner,
        )
        if samples.for_gates is not None:
            steps = steps._with_gates_apart(samples.for_gates[index])
        return replace(steps, index=steps.index.to(device), mass=steps.mass.to(device))

    def _with_gates_apart(self, for_gates: np.ndarray) -> Self:
        """Split each client into two in every step: its other samples, and those for gates."""
        clients = len(self.counts)
        step, client = np.divmod(self.owner, clients)
        cells = (step * 2 + for_gates) * clients + client
        counts = np.bincount(cells, minlength=len(self.sizes) * 2 * clients)
        pairs = zip(counts.reshape(-1, 2, clients), self.sizes, strict=True)
        order = np.lexsort((client, for_gates, step))
        return replace(
            self,
            sizes=[both[:, : len(now)].flatten().tolist() for both, now in pairs],
            index=self.index[torch.from_numpy(order)],
            mass=self.mass[torch.from_numpy(order)],
            owner=self.owner[order],
        )

    @cached_property
    def ends(self) -> list[int]:
        """Where each step begins among all samples, and where the last one ends."""
        return np.cumsum([0, *map(sum, self.sizes)]).tolist()

    def active(self, step: int) -> int:
        """Return how many clients still train."""
        return int((self.counts > step).sum())

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor, list[int]]:
        """Return the sample numbers and masses of a step, and the images of each client."""
        samples = slice(self.ends[step], self.ends[step + 1])
        return self.index[samples], self.mass[samples], self.sizes[step]

    def mean_losses(self, losses: Tensor) -> np.ndarray:
        """Return the mean loss by step and client [steps, a] from losses [n] over masses."""
        cells = len(self.sizes) * len(self.counts)
        sums = np.bincount(self.owner, losses.double().cpu().numpy(), minlength=cells)
        return sums.reshape(len(self.sizes), len(self.counts))


def _padded(batches: Batches) -> Batches:
    """Return batches of equal length, padded by -1, which is the last sample, if that pays."""
    lengths = [len(batch) for batch in batches]
    if not even_pays(lengths):
        return batches
    longest = max(lengths)
    return [np.pad(batch, (0, longest - len(batch)), constant_values=-1) for batch in batches]
