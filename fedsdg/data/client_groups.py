"""Which clients differ from the others, and which of them differ alike."""

from __future__ import annotations

import numpy as np


def client_groups(
    num_clients: int, count: int, groups: int | None, generator: np.random.Generator
) -> np.ndarray:
    """The group [K] int64 of every client: −1 for those that agree, else 0, 1, …

    ``count`` clients at random differ. They are dealt to ``groups`` groups in turn, so that sizes
    differ by at most 1; with None each is a group by itself, numbered in the order of the clients.
    Who differs depends on the generator and on ``count`` alone, and with equal generators those of
    a smaller count are among those of a larger one.

    Raises ValueError for more groups than clients that differ (where there are any).
    """
    chosen = generator.permutation(num_clients)[:count]
    group = np.full(num_clients, -1, dtype=np.int64)
    if groups is None:
        group[np.sort(chosen)] = np.arange(count)
    elif count and groups > count:
        raise ValueError(
            f"{count} clients cannot be divided into {groups} groups; ask for fewer groups"
        )
    else:
        group[chosen] = np.arange(count) % groups
    return group
