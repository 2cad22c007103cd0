"""Weak agents send updates of a few bits per number, rounded up or down by chance.

Suresh et al. 2017: with l and h the least and the greatest number of a vector and 2^b levels
between them, Δ = (h − l) / (2^b − 1) apart, a number becomes one of the two levels beside it, the
upper with the probability of its place between them. The expectation is the number itself, the
error is below Δ. Sent are l, h and b bits for each number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from fedsdg.models.parameters import Layout, offsets
from fedsdg.rng import stream


@dataclass(frozen=True, eq=False)
class Quantisation:
    """``weak``: bool [K], who sends ``bits`` bits for each number."""

    weak: np.ndarray
    bits: int

    def sent(
        self, updates: Tensor, layout: Layout, seed: int, round_: int, cohort: np.ndarray
    ) -> Tensor:
        """The updates [M, d] of a cohort as they arrive; of weak clients quantised.

        Of parameters that it is not the turn of nothing is sent, and nothing is changed.
        """
        rows = np.flatnonzero(self.weak[cohort])
        if not len(rows) or not updates.shape[1]:
            return updates
        arrived, columns = updates.clone(), trained_columns(layout).to(updates.device)
        for row in rows.tolist():
            draw = stream("quantisation", seed, round_, int(cohort[row]))
            values = updates[row, columns].double().cpu().numpy()
            levels, low, high = quantise(values, self.bits, draw)
            found = torch.from_numpy(restore(levels, low, high, self.bits))
            arrived[row, columns] = found.to(arrived)
        return arrived

    def length(self, layout: Layout) -> int:
        """Bytes of one quantised update, which its values do not change; 0 of none."""
        count = int(trained_columns(layout).sum())
        return len(serialise(np.zeros(count, np.uint16), 0.0, 0.0, self.bits)) if count else 0


def trained_columns(layout: Layout) -> Tensor:
    """bool [d]: the communicated parameters that train."""
    columns = torch.zeros(layout.d, dtype=torch.bool)
    places = offsets(layout.communicated)
    for spec in layout.communicated:
        columns[places[spec.name]] = spec.trainable
    return columns


def quantise(
    values: np.ndarray, bits: int, generator: np.random.Generator
) -> tuple[np.ndarray, float, float]:
    """(level of each number, uint16 [n]; the least and the greatest number), float64 [n] given.

    What is not finite has no levels: then both ends are NaN, and so is what arrives.
    """
    low, high = float(values.min()), float(values.max())
    if not np.isfinite(high - low):
        return np.zeros(len(values), np.uint16), float("nan"), float("nan")
    if low == high:
        return np.zeros(len(values), np.uint16), low, high
    places = (values - low) / (high - low) * (2**bits - 1)
    below = np.floor(places)
    up = generator.random(len(values)) < places - below
    return (below + up).astype(np.uint16), low, high


def restore(levels: np.ndarray, low: float, high: float, bits: int) -> np.ndarray:
    """The numbers that the levels stand for, float64 [n]; exactly the ends at the ends."""
    share = levels / (2**bits - 1)
    return low * (1 - share) + high * share


def serialise(levels: np.ndarray, low: float, high: float, bits: int) -> bytes:
    """The message: the bits of all levels one after another, and both ends in float64."""
    places = (levels[:, None] >> np.arange(bits, dtype=np.uint16)) & 1
    packed = np.packbits(places.astype(np.uint8).ravel())
    ends = torch.tensor([low, high], dtype=torch.float64)
    return save({"levels": torch.from_numpy(packed), "ends": ends})
