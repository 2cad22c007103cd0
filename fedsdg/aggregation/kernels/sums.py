"""Weighted sums of rows, in one pass, accumulated in float64 (numba)."""

import numpy as np

from fedsdg.aggregation.kernels.columns import FEW_ROWS, Rows, over_parts
from fedsdg.aggregation.kernels.compiling import compiled


@compiled
def _weighted_sum(flat, stride, size, start, stop, width, weights, total, out):
    """out[start:stop] = sum_k weights[k] row_k; four rows at a time."""
    for left in range(start, stop, width):
        n = min(width, stop - left)
        z = total[:n]
        z[:] = 0.0
        k = 0
        while k + 4 <= size:
            a = flat[k * stride + left : k * stride + left + n]
            b = flat[(k + 1) * stride + left : (k + 1) * stride + left + n]
            c = flat[(k + 2) * stride + left : (k + 2) * stride + left + n]
            e = flat[(k + 3) * stride + left : (k + 3) * stride + left + n]
            p, q, r, s = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
            for j in range(n):
                z[j] += (p * a[j] + q * b[j]) + (r * c[j] + s * e[j])
            k += 4
        while k < size:
            a = flat[k * stride + left : k * stride + left + n]
            p = weights[k]
            for j in range(n):
                z[j] += p * a[j]
            k += 1
        y = out[left : left + n]
        for j in range(n):
            y[j] = z[j]


def weighted_sum(rows: Rows, weights: np.ndarray, out: np.ndarray) -> None:
    """out [d] = sum_k w_k x_k; weights [M] float64."""

    # Only the totals are read again, so the pieces of many rows may be long (see block_width).
    width = 256 if rows.size <= FEW_ROWS else 4096

    def work(start: int, stop: int) -> None:
        total = np.empty(width)
        _weighted_sum(rows.flat, rows.stride, rows.size, start, stop, width, weights, total, out)

    over_parts(rows, width, work)
