"""Data that leave their clients: a share of them goes to all, or all of them to one place.

Neither is federated learning: they show what such data are worth.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from fedsdg.federation.conditions.condition import ClientData
from fedsdg.files.columns import Column
from fedsdg.parts import Part, Share
from fedsdg.rng import stream


class DataSharing(Part):
    """Base of policies; with this one every client trains on its own samples alone."""

    central: ClassVar[bool] = False
    "whether one place trains on all samples, in place of the cohort"

    def prepare(self, data: ClientData) -> ClientData:
        """Return the data with what each client trains on, after all conditions."""
        return data


class SharedSamples(DataSharing):
    """Every client gives ceil(share * n_k) of its training samples to all others."""

    share: Share = 0.05
    "share of its data that every client gives to all others"

    columns: ClassVar = (
        Column("clients", "disclosed", "float64", "share of its training samples that it gives"),
    )

    def prepare(self, data: ClientData) -> ClientData:
        """Add the samples that all give; held-out clients neither give nor receive."""
        never = data.flags("held_out")
        generator = stream("partition", data.seed, 1)
        sizes = np.array([len(shard) for shard in data.train])
        counts = np.where(never, 0, np.ceil((self.share * sizes).round(9))).astype(np.int64)
        pairs = zip(data.train, counts.tolist(), strict=True)
        given = [generator.choice(shard, count, replace=False) for shard, count in pairs if count]
        pool = np.concatenate([data.train[0][:0], *given])
        both = zip(data.train, never, strict=True)
        train = [shard if out else np.union1d(shard, pool) for shard, out in both]
        return replace(data, train=train).with_facts(disclosed=counts / sizes)


class Central(DataSharing):
    """One place holds all training samples; in a round it trains on as many as the cohort would."""

    central: ClassVar[bool] = True
    columns: ClassVar = SharedSamples.columns

    def prepare(self, data: ClientData) -> ClientData:
        """Note that clients give away all of their samples, except those held out."""
        return data.with_facts(disclosed=(~data.flags("held_out")).astype(np.float64))
