"""Data that leave their clients: a share of them goes to all, or all of them to one place.

Neither is federated learning: they show what such data are worth.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np

from fedsdg.files.columns import Column
from fedsdg.next_federation.batches import Epochs, split_batches
from fedsdg.parts import Range, part
from fedsdg.rng import stream


class DataSharing:
    """Base of policies; with this one every client trains on its own samples alone."""

    central: ClassVar[bool] = False
    "whether one place trains on all samples, in place of the cohort"

    def train(self, shards: list[np.ndarray], seed: int) -> list[np.ndarray]:
        """Return what each of K clients trains on, given what it holds."""
        return shards

    def disclosed(self, sizes: np.ndarray) -> np.ndarray | None:
        """Return the share [K] of its samples that each client gives away; None: nobody does.

        Args:
            sizes: [K] training samples of every client.
        """
        return None


@part
class SharedSamples(DataSharing):
    """Every client gives ceil(share * n_k) of its training samples to all others."""

    share: Annotated[float, Range(0, 1)] = 0.05
    "share of its data that every client gives to all others"

    columns: ClassVar = (
        Column("clients", "disclosed", "float64", "share of its training samples that it gives"),
    )

    def train(self, shards: list[np.ndarray], seed: int) -> list[np.ndarray]:
        """Return the samples of each client and those that all give."""
        generator = stream("partition", seed, 1)
        counts = [int(np.ceil(self.share * len(shard))) for shard in shards]
        pairs = zip(shards, counts, strict=True)
        given = [generator.choice(shard, count, replace=False) for shard, count in pairs]
        pool = np.concatenate(given)
        return [np.union1d(shard, pool) for shard in shards]

    def disclosed(self, sizes: np.ndarray) -> np.ndarray:
        """Return ceil(share * n_k) / n_k."""
        return np.asarray(np.ceil(self.share * sizes) / sizes)


@part
class Central(DataSharing):
    """One place holds all training samples; in a round it trains on as many as the cohort would."""

    central: ClassVar[bool] = True
    columns: ClassVar = SharedSamples.columns

    def disclosed(self, sizes: np.ndarray) -> np.ndarray:
        """Return 1 for each client."""
        return np.ones(len(sizes))


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
    skipped = begin - first * len(pool)
    return [split_batches(np.concatenate(orders)[skipped:][: counts[-1]], size)]
