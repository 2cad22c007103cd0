"""Norms, dots with a reference, and squared distances of rows, each in one pass (numba).

Within a cache block the products are formed and added in `real` (float32 for float32 rows); over
the blocks in float64. A result that may have left the range of `real` is not given: the caller
takes it again in float64.
"""

from typing import Any

import numpy as np

from fedsdg.aggregation.kernels.columns import Rows, block_width, over_parts
from fedsdg.aggregation.kernels.compiling import compiled


@compiled
def _moments(flat, stride, size, start, stop, width, coefficients, reference, totals):
    """Add to totals [2, size + 1] the squares and dots of every row, then those of z itself."""
    real = reference.dtype.type
    for left in range(start, stop, width):
        n = min(width, stop - left)
        z = reference[:n]
        z[:] = real(0)
        k = 0
        while k + 4 <= size:
            a = flat[k * stride + left : k * stride + left + n]
            b = flat[(k + 1) * stride + left : (k + 1) * stride + left + n]
            c = flat[(k + 2) * stride + left : (k + 2) * stride + left + n]
            e = flat[(k + 3) * stride + left : (k + 3) * stride + left + n]
            p, q = coefficients[k], coefficients[k + 1]
            r, s = coefficients[k + 2], coefficients[k + 3]
            for j in range(n):
                z[j] += (p * real(a[j]) + q * real(b[j])) + (r * real(c[j]) + s * real(e[j]))
            k += 4
        while k < size:
            a = flat[k * stride + left : k * stride + left + n]
            p = coefficients[k]
            for j in range(n):
                z[j] += p * real(a[j])
            k += 1
        for k in range(size):
            a = flat[k * stride + left : k * stride + left + n]
            square, dot = real(0), real(0)
            for j in range(n):
                x = real(a[j])
                square += x * x
                dot += x * z[j]
            totals[0, k] += square
            totals[1, k] += dot
        square = real(0)
        for j in range(n):
            square += z[j] * z[j]
        totals[0, size] += square


@compiled
def _distances(flat, stride, size, start, stop, width, zero, totals):
    """Add to totals [size, size] the squared distances of rows i < j; four rows j at a time."""
    real = zero.dtype.type
    for left in range(start, stop, width):
        n = min(width, stop - left)
        for i in range(size - 1):
            x = flat[i * stride + left : i * stride + left + n]
            for j in range(i + 1, size, 4):
                j1, j2, j3 = min(j + 1, size - 1), min(j + 2, size - 1), min(j + 3, size - 1)
                a = flat[j * stride + left : j * stride + left + n]
                b = flat[j1 * stride + left : j1 * stride + left + n]
                c = flat[j2 * stride + left : j2 * stride + left + n]
                e = flat[j3 * stride + left : j3 * stride + left + n]
                p, q, r, s = real(0), real(0), real(0), real(0)
                for t in range(n):
                    y = real(x[t])
                    u, v = y - real(a[t]), y - real(b[t])
                    w, h = y - real(c[t]), y - real(e[t])
                    p += u * u
                    q += v * v
                    r += w * w
                    s += h * h
                totals[i, j] += p
                if j1 > j:
                    totals[i, j1] += q
                if j2 > j1:
                    totals[i, j2] += r
                if j3 > j2:
                    totals[i, j3] += s


def moments(rows: Rows, coefficients: np.ndarray, real: Any) -> tuple[np.ndarray, np.ndarray]:
    """([M + 1] squared norms of the rows and of z, [M] dots with z), z = sum_k c_k x_k."""
    width = block_width(rows)
    c = coefficients.astype(real)

    def work(start: int, stop: int) -> np.ndarray:
        totals = np.zeros((2, rows.size + 1))
        z = np.empty(width, real)
        _moments(rows.flat, rows.stride, rows.size, start, stop, width, c, z, totals)
        return totals

    squares, dots = over_parts(rows, width, work)
    return squares, dots[:-1]


def distances(rows: Rows, real: Any) -> np.ndarray:
    """[M, M] ||x_i - x_j||^2 from differences: exactly symmetric, and zero for equal rows."""
    width = block_width(rows)
    zero = np.zeros(1, real)

    def work(start: int, stop: int) -> np.ndarray:
        totals = np.zeros((rows.size, rows.size))
        _distances(rows.flat, rows.stride, rows.size, start, stop, width, zero, totals)
        return totals

    upper = over_parts(rows, width, work)
    return upper + upper.T


def in_range(squares: np.ndarray, d: int, real: Any) -> bool:
    """Whether sums of d squares taken in `real` are good to its precision.

    A product that falls below the smallest normal number of `real` errs by less than its smallest
    subnormal: together no more than eps of a sum of at least d times the smallest normal number.
    Sums of finite numbers that are not finite have overflowed.
    """
    return bool(np.isfinite(squares).all() and (squares >= d * float(np.finfo(real).tiny)).all())
