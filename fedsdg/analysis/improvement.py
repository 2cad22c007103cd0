"""The probability that one method is better than another, over tasks and seeds."""

from __future__ import annotations

import numpy as np

from fedsdg.analysis.bootstrap import (
    CONFIDENCE,
    REPETITIONS,
    bootstrap_interval,
    drawn_counts,
    task_scores,
)
from fedsdg.analysis.interquartile import Estimate


def probability_of_improvement(
    subject: np.ndarray,
    rival: np.ndarray,
    confidence: float = CONFIDENCE,
    repetitions: int = REPETITIONS,
) -> Estimate:
    """P(subject > rival) + ½ P(subject = rival) for two runs of the same task, mean over tasks.

    In each task it is the Mann-Whitney U over the number of pairs, U/n²: every run of the subject
    meets every run of the rival (Agarwal et al. 2021). Scores are [tasks, seeds], the seeds of both
    in the same order: a seed is one partition for both, so the bootstrap draws it for both at once.
    Raises ``ValueError`` for scores of different shapes, or that are not finite.
    """
    ours, theirs = task_scores(subject), task_scores(rival)
    if ours.shape != theirs.shape:
        raise ValueError(
            f"scores of subject and rival differ in shape: {ours.shape} and {theirs.shape}"
        )
    tasks, seeds = ours.shape
    wins = _wins(ours, theirs)
    counts = drawn_counts("probability of improvement", tasks, seeds, repetitions)
    met = np.einsum("bti,tij,btj->b", counts, wins, counts, optimize=True)
    interval = bootstrap_interval(met / (tasks * seeds**2), seeds, confidence)
    low, high = (None, None) if interval is None else map(float, interval)
    return Estimate(float(wins.mean()), low, high, tasks, seeds)


def _wins(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """[tasks, seeds, seeds]: 1 where our run i is above their run j, ½ where they are equal."""
    difference = ours[:, :, None] - theirs[:, None, :]
    wins: np.ndarray = 0.5 * (1 + np.sign(difference))
    return wins
