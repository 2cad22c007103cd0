"""Wrong labels: symmetric noise, at a rate for each client."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from fedsdg.federation.conditions.condition import ClientData, Condition
from fedsdg.files.columns import Column
from fedsdg.parts import Ends, Share
from fedsdg.rng import stream


class LabelNoise(Ends, Condition):
    """Wrong labels: a rate for each client, drawn uniformly.

    A training or validation sample gets, at its client's rate, one of the other classes. A higher
    rate hits the samples that a lower one hits, and more.
    """

    low: Share = 0.0
    "least share of wrong labels of a client"
    high: Share = 0.4
    "greatest share of wrong labels of a client"

    columns: ClassVar = (
        Column("clients", "noise_rate", "float64", "share of its labels that are wrong"),
    )

    def prepare(self, data: ClientData) -> ClientData:
        """Change labels, and record each client's rate."""
        generator = stream("label-noise", data.seed)
        samples = len(data.labels)
        rates = self.low + (self.high - self.low) * generator.random(data.num_clients)
        luck = generator.random(samples)
        shift = generator.integers(1, data.num_classes, size=samples)
        labels = data.labels.copy()
        for rate, train, val in zip(rates, data.train, data.val, strict=True):
            held = np.concatenate([train, val])
            hit = held[luck[held] < rate]
            labels[hit] = (labels[hit] + shift[hit]) % data.num_classes
        return replace(data, labels=labels).with_facts(noise_rate=rates)
