"""The stratified bootstrap: seeds are drawn again within each task, with replacement.

A task is a cell of an arena. A seed is one partition for all methods, so one drawing of seeds
serves them all. Draws come from named streams: the same scores give the same interval.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri

from fedsdg.analysis.inference import CONFIDENCE

#: How often the seeds are drawn again.
REPETITIONS = 5_000


@lru_cache(maxsize=3)
def drawn_counts(stream: str, tasks: int, seeds: int, repetitions: int = REPETITIONS) -> np.ndarray:
    """How often each seed was drawn: [repetitions, tasks, seeds], ``seeds`` in all per task.

    ``stream`` names the generator: the same name and sizes give the same counts.
    """
    sequence = np.random.SeedSequence(list(stream.encode()))
    generator = np.random.Generator(np.random.PCG64(sequence))
    equal = np.full(seeds, 1 / seeds)
    counts = generator.multinomial(seeds, equal, size=(repetitions, tasks))
    counts.flags.writeable = False  # the next who asks gets the same array
    return counts


def bootstrap_interval(
    statistics: np.ndarray, seeds: int, confidence: float = CONFIDENCE
) -> tuple[np.ndarray, np.ndarray] | None:
    """Low and high end over the first axis, a statistic per drawing: the expanded percentiles.

    The ends are the quantiles at Φ(±√(n/(n−1)) · z), z of the confidence and n the number of
    ``seeds``: the plain percentiles of n draws from n values are too narrow by about √((n−1)/n)
    (Hesterberg 2015, The American Statistician 69(4), section 5.3). None of fewer than two seeds.
    """
    if seeds < 2:
        return None
    z = ndtri(0.5 + confidence / 2) * math.sqrt(seeds / (seeds - 1))
    low, high = np.quantile(statistics, [ndtr(-z), ndtr(z)], axis=0)
    return low, high


def task_scores(scores: np.ndarray) -> np.ndarray:
    """``scores`` as float64 [tasks, seeds].

    Raises ``ValueError`` for another shape, and for scores that are not finite.
    """
    x = np.asarray(scores, dtype=np.float64)
    if x.ndim != 2 or x.size == 0:
        raise ValueError(f"scores are tasks x seeds with one of each at least, got shape {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError(f"scores must be finite, got {x.tolist()}; leave failed runs out first")
    return x
