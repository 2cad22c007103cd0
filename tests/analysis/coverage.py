"""How often intervals cover what is true, and how often 95 % intervals may."""

import math
from collections.abc import Iterable

#: Simulated records in each test.
TRIALS = 1000


def share(hits: Iterable[bool]) -> float:
    found = list(hits)
    assert len(found) == TRIALS
    return sum(found) / TRIALS


def is_nominal(covered: float) -> bool:
    """95 % within three standard errors of so many trials, √(.95 · .05 / 1000) = 0.69 points, and
    one point that few seeds may cost."""
    return abs(covered - 0.95) <= 3 * math.sqrt(0.95 * 0.05 / TRIALS) + 0.01
