"""Choose clients at random: shares of the clients, and groups that differ from the others."""

import math

import numpy as np


def clients_in(share: float, num_clients: int) -> int:
    """Return a share of K clients as a whole number, share · K with halves rounded up.

    Example:
        >>> clients_in(0.5, 5)
        3
    """
    return math.floor(share * num_clients + 0.5)


def client_groups(
    num_clients: int, count: int, groups: int | None, generator: np.random.Generator
) -> np.ndarray:
    """Draw which clients differ from the others, and which of them differ in the same way.

    Clients are assigned to groups in turn, so that sizes differ by at most 1. With equal generators
    the clients of a smaller ``count`` are among those of a larger one.

    Args:
        num_clients: Number of clients K.
        count: Number of clients that differ.
        groups: Number of groups; None: every client that differs is a group.
        generator: Source of randomness.

    Returns:
        int64 [K], the group of every client from 0; −1: it does not differ.

    Raises:
        ValueError: There are more groups than clients that differ.
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
