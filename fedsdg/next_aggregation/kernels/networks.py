"""Comparator networks: pairs of positions, compared in this order whatever the numbers are."""

from functools import lru_cache

import numpy as np


def sorting_network(size: int) -> list[tuple[int, int]]:
    """Return the comparators of Batcher's merge exchange (Knuth, volume 3, algorithm 5.2.2 M).

    Args:
        size: How many numbers are sorted.

    Returns:
        Pairs i < j; the smaller of the two numbers goes to i.
    """
    pairs: list[tuple[int, int]] = []
    p = top = 1 << max(size - 1, 1).bit_length() - 1
    while p:
        q, r, distance = top, 0, p
        while distance:
            pairs += [(i, i + distance) for i in range(size - distance) if i & p == r]
            distance, q, r = q - p, q // 2, p
        p //= 2
    return pairs


@lru_cache(maxsize=32)
def selection_network(size: int, trim: int) -> np.ndarray:
    """Return the comparators [n, 2] that bring ranks trim … size-1-trim into the middle.

    From the last comparator to the first, one is left out if both of its numbers stay on one side,
    among these ranks or not, and no later comparator reads them.
    """
    inside = [trim <= rank < size - trim for rank in range(size)]
    read_later, kept = [False] * size, []
    for i, j in reversed(sorting_network(size)):
        if read_later[i] or read_later[j] or inside[i] != inside[j]:
            read_later[i] = read_later[j] = True
            kept.append((i, j))
    return np.array(kept[::-1], dtype=np.int64).reshape(-1, 2)
