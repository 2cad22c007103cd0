"""Data that leave their clients: some of them shared with all, or all of them in one place.

Neither is federated learning. Sharing shows what a share of everybody's privacy buys, the pool what
training without any would reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np

from fedsdg.federation.cohorts import Shards, draw_cohort
from fedsdg.files.columns import Column
from fedsdg.parts import Range, part
from fedsdg.rng import stream


class Pooling:
    """The neutral policy: every client trains on its own samples, and on no others."""

    #: Whether one place trains on all samples instead of the cohort.
    central = False

    def shards(self, shards: Shards, generator: np.random.Generator) -> Shards:
        """What each client trains on."""
        return shards

    def disclosed(self, sizes: np.ndarray) -> np.ndarray | None:
        """[K] the share of its training samples that each client gives away; None: nobody any.

        ``sizes`` [K]: how many it has of its own.
        """
        return None


@part
class SharedSamples(Pooling):
    """Every client gives a share of its training samples, drawn at random, to all others.

    ⌈share · n_k⌉ samples of client k join the pool; every client trains on its own and on the pool.
    """

    share: Annotated[float, Range(0, 1)] = 0.05
    "share of its data that every client gives to all others"

    #: What it adds to the records.
    columns: ClassVar = (
        Column("clients", "disclosed", "float64", "share of its training samples that it gives"),
    )

    def shards(self, shards: Shards, generator: np.random.Generator) -> Shards:
        counts = self._counts(np.array([len(own) for own in shards.train]))
        given = [
            generator.choice(own, count, replace=False)
            for own, count in zip(shards.train, counts.tolist(), strict=True)
        ]
        pool = np.concatenate(given)
        return replace(shards, train=[np.union1d(own, pool) for own in shards.train])

    def disclosed(self, sizes: np.ndarray) -> np.ndarray:
        shares: np.ndarray = self._counts(sizes) / sizes
        return shares

    def _counts(self, sizes: np.ndarray) -> np.ndarray:
        counts: np.ndarray = np.ceil(self.share * sizes).astype(np.int64)
        return counts


@part
class Central(Pooling):
    """One place holds all training samples; it processes as many in a round as the cohort would."""

    central = True

    def disclosed(self, sizes: np.ndarray) -> np.ndarray:
        return np.ones(len(sizes))


def pooled_batches(
    shards: Sequence[np.ndarray],
    *,
    seed: int,
    round_: int,
    clients_per_round: int,
    epochs: int,
    batch_size: int | None,
    held_out: np.ndarray | None = None,
) -> list[np.ndarray]:
    """The batches of a round of central training, one list of indices after another.

    The samples of all clients are gone through again and again, each time in a new order; a round
    takes from there as many as the cohort of that round would process: epochs · Σ n_k.
    ``held_out``: bool [K], whose samples are not in the pool; None: nobody's.
    """
    out = np.zeros(len(shards), dtype=bool) if held_out is None else held_out
    pool = np.concatenate([own for own, left in zip(shards, out.tolist(), strict=True) if not left])
    sizes = np.array([len(own) for own in shards])
    counts = [
        epochs * int(sizes[draw_cohort(seed, past, len(shards), clients_per_round, out)].sum())
        for past in range(1, round_ + 1)
    ]
    begin, end = sum(counts[:-1]), sum(counts)
    orders = [
        stream("batches", seed, 0, epoch).permutation(pool)
        for epoch in range(begin // len(pool), -(-end // len(pool)))
    ]
    skipped = begin - begin // len(pool) * len(pool)
    mine = np.concatenate(orders)[skipped : skipped + counts[-1]]
    size = batch_size or len(mine)
    return [mine[first : first + size] for first in range(0, len(mine), size)]
