"""Weights of clients: what they count by, a cap on the largest, and the summary of a round."""

from typing import Literal

import numpy as np

from fedsdg.aggregation.types import Context
from fedsdg.parts import part

ZERO_WEIGHT = 1e-6
"""A weight below this counts as zero."""


@part
class Weighed:
    """Part of a rule that weighs clients: n_k, what client k counts by.

    "samples": its training samples (McMahan et al. 2017); "uniform": 1; "batches": its local steps
    per epoch.
    """

    weights: Literal["samples", "uniform", "batches"] = "samples"
    """by what clients count: `samples` n_k, `uniform` (all alike), or `batches` (local steps per
    epoch)"""

    @property
    def needs(self) -> str | None:
        """The field of a context without which clients cannot be counted so."""
        return None if self.weights == "uniform" else f"num_{self.weights}"

    def counts(self, context: Context) -> np.ndarray:
        """[M] float64 n_k of the cohort's clients.

        Raises ValueError where they are not all >= 0 with a positive sum.
        """
        size = len(context.clients)
        if self.weights == "uniform":
            return np.ones(size)
        source = context.num_samples if self.weights == "samples" else context.num_batches
        counts = np.asarray(source, dtype=np.float64)
        if counts.shape != (size,) or not (counts >= 0).all() or not counts.sum() > 0:
            raise ValueError(
                f"cannot weigh by {self.weights}: the counts {counts.tolist()} must be {size} "
                f"numbers >= 0 with a positive sum; use weights='uniform'"
            )
        return counts


def require_cap(max_weight: float, size: int) -> None:
    """ValueError where no weights of `size` clients are at most `max_weight` and sum to 1."""
    if not max_weight * size >= 1.0 - 1e-9:
        raise ValueError(
            f"max_weight={max_weight} is below 1/{size}: the weights of {size} clients could not "
            f"sum to 1; use at least {1 / size:.6g}"
        )


def capped(weights: np.ndarray, max_weight: float) -> np.ndarray:
    """Weights [M] (>= 0, summing to 1) with none above max_weight, still summing to 1.

    The excess goes to the clients below the cap in proportion to their weights (evenly if these are
    all zero), again and again until none exceeds the cap. Raises ValueError when max_weight < 1/M,
    which no weights can satisfy, or max_weight > 1.
    """
    size = len(weights)
    if not max_weight <= 1.0:
        raise ValueError(f"max_weight={max_weight} must be at most 1; use None for no cap")
    require_cap(max_weight, size)
    result = np.array(weights, dtype=np.float64)
    at_cap = np.zeros(size, dtype=bool)
    while True:
        exceeding = result > max_weight * (1 + 1e-12)
        if not exceeding.any():
            return result
        at_cap |= exceeding
        result[at_cap] = max_weight
        free = ~at_cap
        if not free.any():
            return result
        share = result[free]
        share = share / share.sum() if share.sum() > 0 else np.full(len(share), 1 / len(share))
        result[free] = share * (1.0 - max_weight * at_cap.sum())


def weight_summary(weights: np.ndarray) -> dict[str, float]:
    """Mean, standard deviation (population), min, max, zeros (weights < 1e-6) and entropy.

    entropy = -sum_k w_k ln w_k in nats, with 0 ln 0 = 0: ln M for uniform weights, 0 when one
    client has all the weight. weights: [M], M >= 1.
    """
    w = np.asarray(weights, dtype=np.float64)
    if w.ndim != 1 or w.size == 0:
        raise ValueError(f"weights have shape {w.shape}; expected [M] with at least one client")
    positive = w[w > 0]
    return {
        "mean": float(w.mean()),
        "std": float(w.std()),
        "min": float(w.min()),
        "max": float(w.max()),
        "zeros": float((w < ZERO_WEIGHT).sum()),
        "entropy": float(-(positive * np.log(positive)).sum()) + 0.0,
    }
