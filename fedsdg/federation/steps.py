"""The batches of many clients, laid out step by step and sent to the device at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Steps:
    """Batches of clients that stand longest first: those still training are a leading block.

    ``counts`` [a]: steps of each client, falling; ``sizes[step]``: batch sizes of the clients
    still training. ``index`` and ``size`` [n, on the device], ``owner`` [n]: of every sample drawn
    its index, the size of its batch (or what stands for it), and step · a + client.
    """

    counts: np.ndarray
    sizes: list[list[int]]
    ends: np.ndarray
    index: Tensor
    size: Tensor
    owner: np.ndarray

    @classmethod
    def of(cls, own: Sequence[Sequence[np.ndarray]], device: torch.device) -> Steps:
        """``own[i]`` are the batches of the i-th client, one or more, longest first."""
        counts = np.array([len(batches) for batches in own])
        batches: list[np.ndarray] = []
        sizes: list[list[int]] = []
        owners: list[int] = []
        for step in range(int(counts.max())):
            active = int((counts > step).sum())
            drawn = [own[i][step] for i in range(active)]
            batches += drawn
            sizes.append([len(batch) for batch in drawn])
            owners += [step * len(counts) + i for i in range(active)]
        lengths = np.array([len(batch) for batch in batches])
        return cls(
            counts=counts,
            sizes=sizes,
            ends=np.cumsum([0, *(sum(step) for step in sizes)]),
            index=torch.from_numpy(np.concatenate(batches)).to(device),
            size=torch.from_numpy(np.repeat(lengths, lengths)).to(device),
            owner=np.repeat(owners, lengths),
        )

    def weighed(self, weights: np.ndarray | None) -> Steps:
        """With Σ of the ``weights`` [n] of a batch in place of its size; None: as it is."""
        if weights is None:
            return self
        masses = np.bincount(self.owner, weights)[self.owner]
        return replace(self, size=torch.from_numpy(masses).to(self.index.device))

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
