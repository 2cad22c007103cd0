"""Wrong labels: symmetric noise, at a rate for each client."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def noisy_labels(
    labels: np.ndarray,
    train: Sequence[np.ndarray],
    val: Sequence[np.ndarray],
    low: float,
    high: float,
    num_classes: int,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """A copy of the labels [n] with noise on clients' train and validation samples; rates [K].

    Client k has a rate uniform in [low, high]. Each of its samples ``train[k]`` and ``val[k]``
    (indices) gets with that probability one of the other classes, all alike. All other samples
    (tests, the global test set) keep their label.

    Whether a sample is hit is decided by one number of its own, so a higher range hits what a
    lower one hits, and more.

    Raises ValueError for a range outside 0 … 1 and for less than two classes.
    """
    if not 0 <= low <= high <= 1:
        raise ValueError(f"label noise from {low} to {high}: rates must rise within 0 … 1")
    if num_classes < 2:
        raise ValueError(f"label noise needs at least 2 classes, there are {num_classes}")
    rates = low + (high - low) * generator.random(len(train))
    luck = generator.random(len(labels))
    other = (labels + generator.integers(1, num_classes, size=len(labels))) % num_classes
    noisy = labels.copy()
    for rate, *shards in zip(rates, train, val, strict=True):
        held = np.concatenate(shards)
        hit = held[luck[held] < rate]
        noisy[hit] = other[hit]
    return noisy, rates
