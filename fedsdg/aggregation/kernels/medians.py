"""The coordinate-wise median by a comparator network, vectorised over columns (numba).

A network compares the same pairs of rows whatever the numbers are: a cache block of columns goes
through it without a branch, many columns at a time.
"""

from functools import lru_cache, partial

import numpy as np

from fedsdg.aggregation.kernels.columns import Rows, block_width, over_parts
from fedsdg.aggregation.kernels.compiling import compiled

MOST_ROWS = 1024
"""A network of more comparators than for these takes long to lay out."""


def sorting_network(size: int) -> list[tuple[int, int]]:
    """Batcher's merge exchange: pairs i < j; the smaller of the two goes to i (Knuth 5.2.2 M)."""
    pairs = []
    top = 1 << max(size - 1, 1).bit_length() - 1
    p = top
    while p:
        q, r, distance = top, 0, p
        while distance:
            pairs += [(i, i + distance) for i in range(size - distance) if i & p == r]
            distance, q, r = q - p, q // 2, p
        p //= 2
    return pairs


@lru_cache(maxsize=32)
def selection_network(size: int, outputs: tuple[int, ...]) -> np.ndarray:
    """[n, 2] the comparators of the sorting network that the given ranks depend on."""
    needed, kept = set(outputs), []
    for pair in reversed(sorting_network(size)):
        if not needed.isdisjoint(pair):
            needed.update(pair)
            kept.append(pair)
    return np.array(kept[::-1], dtype=np.int64).reshape(-1, 2)


# Not relaxed: the halves of two large numbers must not be added before they are halved.
@partial(compiled, relaxed=False)
def _medians(flat, stride, size, start, stop, width, network, buffer, zeros, out):
    """out[start:stop] = medians; returns 0, or NaN if a number there is not finite."""
    zero = zeros.dtype.type(0)
    zeros[:] = zero
    for left in range(start, stop, width):
        n = min(width, stop - left)
        for k in range(size):
            a = flat[k * stride + left : k * stride + left + n]
            x = buffer[k * width : k * width + n]
            for t in range(n):
                x[t] = a[t]
                zeros[t] += a[t] * zero
        for c in range(network.shape[0]):
            i, j = network[c, 0] * width, network[c, 1] * width
            x = buffer[i : i + n]
            y = buffer[j : j + n]
            for t in range(n):
                p, q = x[t], y[t]
                x[t] = p if p < q else q
                y[t] = q if p < q else p
        i, j = (size - 1) // 2 * width, size // 2 * width
        x = buffer[i : i + n]
        y = buffer[j : j + n]
        z = out[left : left + n]
        for t in range(n):
            p, q = np.float64(x[t]), np.float64(y[t])
            both = p + q
            z[t] = 0.5 * both if abs(both) < np.inf else 0.5 * p + 0.5 * q
    return zeros.sum()


def medians(rows: Rows, out: np.ndarray) -> bool:
    """out [d] = the median of each column; False, and no medians, if a number is not finite."""
    width = block_width(rows)
    network = selection_network(rows.size, ((rows.size - 1) // 2, rows.size // 2))

    def work(start: int, stop: int) -> float:
        scratch = [np.empty(n, rows.flat.dtype) for n in (rows.size * width, width)]
        return _medians(
            rows.flat, rows.stride, rows.size, start, stop, width, network, *scratch, out
        )

    return bool(over_parts(rows, width, work) == 0)
