"""The batches of many clients, laid out step by step and sent to the device at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedsdg.models.products import even_pays


@dataclass(frozen=True)
class Steps:
    """Batches of clients that stand longest first: those still training are a leading block.

    ``counts`` and ``drawn`` [a]: steps and samples of each client, steps falling; ``sizes[step]``:
    batch sizes of the clients still training. ``index`` and ``size`` [n, on the device], ``owner``
    and ``real`` [n]: of every sample its index, the size of its batch (or what stands for it),
    step · a + client, and whether it was drawn.

    For a device all batches of a step are made equally long, so that each product is one and
    not one a client: what is filled in repeats a client's last sample and has an infinite ``size``,
    so that its loss and its gradient count 0. Where a step would become more than ``MOST_FILLED``
    times as long, and on a CPU, nothing is filled in.
    """

    counts: np.ndarray
    sizes: list[list[int]]
    ends: np.ndarray
    index: Tensor
    size: Tensor
    owner: np.ndarray
    real: np.ndarray

    @classmethod
    def of(cls, own: Sequence[Sequence[np.ndarray]], device: torch.device) -> Steps:
        """``own[i]`` are the batches of the i-th client, one or more, longest first."""
        counts = np.array([len(batches) for batches in own])
        indices: list[np.ndarray] = []
        divisors: list[np.ndarray] = []
        sizes: list[list[int]] = []
        owners: list[int] = []
        for step in range(int(counts.max())):
            batches = [own[i][step] for i in range(int((counts > step).sum()))]
            lengths = [len(batch) for batch in batches]
            fill = device.type != "cpu" and even_pays(lengths)
            sizes.append([max(lengths)] * len(lengths) if fill else lengths)
            for i, (batch, length) in enumerate(zip(batches, sizes[-1], strict=True)):
                indices.append(batch)
                divisors.append(np.full(len(batch), float(len(batch))))
                if missing := length - len(batch):
                    indices.append(np.full(missing, batch[-1]))
                    divisors.append(np.full(missing, np.inf))
                owners.append(step * len(counts) + i)
        size = np.concatenate(divisors)
        return cls(
            counts=counts,
            sizes=sizes,
            ends=np.cumsum([0, *(sum(step) for step in sizes)]),
            index=torch.from_numpy(np.concatenate(indices)).to(device),
            size=torch.from_numpy(size).to(device),
            owner=np.repeat(owners, [length for step in sizes for length in step]),
            real=np.isfinite(size),
        )

    def active(self) -> list[int]:
        """How many clients still train, step by step."""
        return [int((self.counts > step).sum()) for step in range(len(self.sizes))]

    @property
    def drawn(self) -> np.ndarray:
        """How many samples each client has drawn, [a]."""
        clients = self.owner[self.real] % len(self.counts)
        return np.bincount(clients, minlength=len(self.counts))

    def weighed(self, weights: np.ndarray | None, *, of_all: bool = False) -> Steps:
        """With Σ of the ``weights`` [n] of a batch in place of its size; None: each weighs 1.

        ``of_all``: of all samples of its client.
        """
        if weights is None and not of_all:
            return self
        whose = self.owner % len(self.counts) if of_all else self.owner
        masses = np.bincount(whose, self.real if weights is None else self.real * weights)[whose]
        size = np.where(self.real, masses, np.inf)
        return replace(self, size=torch.from_numpy(size).to(self.index.device))

    def gates_apart(self, for_gates: np.ndarray) -> Steps:
        """Every client as two: with its other samples, then with those in ``for_gates`` (bool [n]).

        In each step come the other samples of all clients first. ``sizes`` then have two entries
        a client, and what divides a loss stays the size of its whole batch.
        """
        step = np.repeat(np.arange(len(self.sizes)), np.diff(self.ends))
        order = np.lexsort((self.owner, for_gates, step))
        clients = len(self.counts)
        whose = step * 2 * clients + for_gates * clients + self.owner % clients
        numbers = np.bincount(whose, minlength=len(self.sizes) * 2 * clients)
        numbers = numbers.reshape(-1, 2, clients)
        places = torch.from_numpy(order).to(self.index.device)
        return replace(
            self,
            sizes=[
                own[:, : len(sizes)].flatten().tolist()
                for own, sizes in zip(numbers, self.sizes, strict=True)
            ],
            index=self.index[places],
            size=self.size[places],
            owner=self.owner[order],
            real=self.real[order],
        )

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """(sample indices, what divides each sample's loss) of all clients still training."""
        part = slice(self.ends[step], self.ends[step + 1])
        return self.index[part], self.size[part]

    def means(self, shares: Tensor) -> np.ndarray:
        """Mean loss by step and client [steps, a], 0 after a client's last step.

        ``shares`` [n]: loss of every sample over the size of its batch; added up in float64.
        """
        places = len(self.sizes) * len(self.counts)
        sums = np.bincount(self.owner, shares.double().cpu().numpy(), minlength=places)
        return sums.reshape(len(self.sizes), len(self.counts))


def longest_first(own: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """Numbers of the clients that have batches, by how many they have; equals in their order."""
    counts = np.array([len(batches) for batches in own])
    order = np.argsort(-counts, kind="stable")
    return order[counts[order] > 0]


def by_epochs(batches: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """A client's batches cut where an epoch ends: when every sample has been drawn once more.

    What remains when its time ran out in mid-epoch is a last, shorter part.
    """
    whole = len(np.unique(np.concatenate(batches)))
    parts: list[list[np.ndarray]] = [[]]
    drawn = 0
    for batch in batches:
        if drawn == whole:
            parts.append([])
            drawn = 0
        parts[-1].append(batch)
        drawn += len(batch)
    return parts
