"""Whether statistics taken in float32 or float64 are good to its precision.

Each takes `vanishes(k, other)`: whether x_k is 0 everywhere (other None), or equal to x_other.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

Vanishes = Callable[[int, int | None], bool]


def moments_in_range(squares: np.ndarray, d: int, real: Any, vanishes: Vanishes) -> bool:
    """Whether squares [M + 1] of rows and of z, taken in `real`, are good to its precision."""
    size = len(squares) - 1
    doubtful = np.flatnonzero(_doubtful(squares, d, real))
    if not np.isfinite(squares).all() or squares[doubtful].any():
        return False
    # If z vanishes and not all rows do, it may be that its squares only seem to.
    alone = size not in doubtful or len(doubtful) == size + 1
    return alone and all(vanishes(int(k), None) for k in doubtful if k < size)


def distances_in_range(found: np.ndarray, d: int, real: Any, vanishes: Vanishes) -> bool:
    """Whether squared distances [M, M] between rows, taken in `real`, are good to it."""
    size = len(found)
    doubtful = _doubtful(found, d, real) & ~np.eye(size, dtype=bool)
    if not np.isfinite(found).all() or found[doubtful].any():
        return False
    equal_to = np.arange(size)
    for j in range(size):
        i = int(np.argmax(found[:, j] == 0))  # The first that seems to be equal.
        if i < j and vanishes(j, i):
            equal_to[j] = equal_to[i]
    return bool((equal_to[:, None] == equal_to[None, :])[doubtful].all())


def _doubtful(squares: np.ndarray, d: int, real: Any) -> np.ndarray:
    """Where sums of d squares may have lost what fell below the smallest numbers of `real`.

    A product that falls below the smallest normal number errs by less than the smallest subnormal:
    together no more than eps of a sum of at least d times the smallest normal number. Only zeros
    are good below that. (Sums of finite numbers that are not finite have overflowed.)
    """
    return np.asarray(squares < d * float(np.finfo(real).tiny))
