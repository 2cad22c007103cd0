"""Performance profiles over clients: which share of them is served better than τ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsdg.analysis.bootstrap import CONFIDENCE, REPETITIONS, bootstrap_interval, drawn_counts


@dataclass(frozen=True)
class Profile:
    """``share`` of clients above each of ``thresholds``, and the ends of a band around it.

    ``low`` and ``high`` are None where one seed allows no band.
    """

    thresholds: np.ndarray
    share: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None


def performance_profile(
    clients: Sequence[Sequence[np.ndarray]],
    thresholds: np.ndarray,
    confidence: float = CONFIDENCE,
    repetitions: int = REPETITIONS,
) -> Profile:
    """F(τ) = share of the clients with an accuracy above τ, mean over seeds and tasks.

    ``clients[task][seed]`` holds an accuracy per client, in the unit of ``thresholds``; every task
    has the same number of seeds, and a run's clients count as one whole however many they are
    (Dolan and Moré 2002; Agarwal et al. 2021). The band is pointwise: the bootstrap draws whole
    runs within each task, because the clients of a run are not independent. Raises ``ValueError``
    where tasks differ in their seeds or a run has no client with a finite accuracy.
    """
    tasks, seeds = len(clients), len(clients[0]) if clients else 0
    if not seeds or any(len(runs) != seeds for runs in clients):
        counted = [len(runs) for runs in clients]
        raise ValueError(f"every task needs the same number of seeds, got {counted}")
    grid = np.asarray(thresholds, dtype=np.float64)
    shares = np.array([[_share_above(run, grid) for run in runs] for runs in clients])
    counts = drawn_counts("performance profile", tasks, seeds, repetitions)
    flat = shares.reshape(tasks * seeds, len(grid))
    drawn = counts.reshape(repetitions, -1) @ flat / (tasks * seeds)
    band = bootstrap_interval(drawn, seeds, confidence)
    return Profile(grid, flat.mean(axis=0), *((None, None) if band is None else band))


def _share_above(run: np.ndarray, grid: np.ndarray) -> np.ndarray:
    values = np.sort(np.asarray(run, dtype=np.float64))
    if values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"a run needs clients with finite accuracies, got {values.tolist()}")
    return 1 - np.searchsorted(values, grid, side="right") / values.size
