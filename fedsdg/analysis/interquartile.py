"""The interquartile mean over tasks and seeds, with a stratified bootstrap interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsdg.analysis.bootstrap import (
    CONFIDENCE,
    REPETITIONS,
    bootstrap_interval,
    drawn_counts,
    task_scores,
)


@dataclass(frozen=True)
class Estimate:
    """A number over ``tasks`` tasks of ``seeds`` seeds each, and its interval.

    ``low`` and ``high`` are None where one seed allows none.
    """

    value: float
    low: float | None
    high: float | None
    tasks: int
    seeds: int


def interquartile_mean(
    scores: np.ndarray, confidence: float = CONFIDENCE, repetitions: int = REPETITIONS
) -> Estimate:
    """The mean of the middle half of all scores [tasks, seeds], in their unit.

    Of N = tasks · seeds scores the ⌊N/4⌋ lowest and the ⌊N/4⌋ highest are left out (Agarwal et al.
    2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice"). The interval is
    the bootstrap's over seeds within each task. Raises ``ValueError`` for scores of another shape
    or that are not finite.
    """
    x = task_scores(scores)
    tasks, seeds = x.shape
    counts = drawn_counts("interquartile mean", tasks, seeds, repetitions)
    interval = bootstrap_interval(_drawn_means(x, counts), seeds, confidence)
    low, high = (None, None) if interval is None else map(float, interval)
    return Estimate(float(middle_mean(x.ravel())), low, high, tasks, seeds)


def middle_mean(values: np.ndarray) -> np.ndarray:
    """Mean without the ⌊N/4⌋ lowest and highest of N values, along the last axis."""
    cut = values.shape[-1] // 4
    ordered = np.sort(values, axis=-1)
    mean: np.ndarray = ordered[..., cut : values.shape[-1] - cut].mean(axis=-1)
    return mean


def _drawn_means(x: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """``middle_mean`` of each drawing: [repetitions] from counts [repetitions, tasks, seeds]."""
    # Each score stands as often as it was drawn: every drawing has as many as there are scores.
    order = np.argsort(x, axis=None)
    times = counts.reshape(len(counts), -1)[:, order]
    upper = times.cumsum(axis=1)
    cut = x.size // 4
    kept = np.clip(upper, cut, x.size - cut) - np.clip(upper - times, cut, x.size - cut)
    means: np.ndarray = kept @ x.ravel()[order] / (x.size - 2 * cut)
    return means
