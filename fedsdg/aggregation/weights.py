"""Weights of clients: what they count by, a cap on the largest, and the summary of a round."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedsdg.aggregation.types import Context, Rule
from fedsdg.errors import shortened

ZERO_WEIGHT = 1e-6
"""A smaller weight counts as zero in a summary."""


class Weighed(Rule):
    """A rule that weighs clients by n_k, what client k counts by.

    "samples": its training samples (McMahan et al. 2017); "uniform": 1; "batches": its local steps
    per epoch.
    """

    weights: Literal["samples", "uniform", "batches"] = "samples"
    """by what clients count: `samples` n_k, `uniform` (all alike), or `batches` (local steps per
    epoch)"""

    @property
    def needs(self) -> str | None:  # type: ignore[override]
        """The field of a context that holds the counts; None: no field."""
        return None if self.weights == "uniform" else f"num_{self.weights}"

    def counts(self, context: Context) -> np.ndarray:
        """Return [M] n_k of the cohort's clients.

        Raises:
            ValueError: A count is negative, or all are 0.
        """
        if self.weights == "uniform":
            return np.ones(len(context.clients))
        counts = context.num_samples if self.weights == "samples" else context.num_batches
        if not (counts >= 0).all() or not counts.sum() > 0:
            raise ValueError(
                f"cannot weigh by {self.weights}: the counts {shortened(counts.tolist())} must be "
                "at least 0 with a positive sum; use weights='uniform'"
            )
        return counts


def require_cap(max_weight: float, size: int) -> None:
    """Raise ValueError if no weights of `size` clients are at most `max_weight` and sum to 1."""
    if not max_weight * size >= 1.0 - 1e-9:
        raise ValueError(
            f"max_weight={max_weight} is below 1/{size}: the weights of {size} clients could not "
            f"sum to 1; use at least {1 / size:.6g}"
        )


def capped(weights: np.ndarray, max_weight: float) -> np.ndarray:
    """Return weights [M] with none above max_weight, still summing to 1.

    The excess goes to the clients below the cap in proportion to their weights (evenly if these
    are all zero), repeatedly until none exceeds the cap.

    Args:
        weights: [M] at least 0, summing to 1.
        max_weight: The cap, at most 1.

    Raises:
        ValueError: max_weight is below 1/M.
    """
    require_cap(max_weight, len(weights))
    result = np.array(weights, dtype=np.float64)
    at_cap = np.zeros(len(weights), dtype=bool)
    while (result > max_weight * (1 + 1e-12)).any():
        at_cap |= result >= max_weight
        result[at_cap] = max_weight
        shares = result[~at_cap]
        if not shares.any():
            shares = np.ones(len(shares))
        result[~at_cap] = shares / shares.sum() * (1.0 - max_weight * at_cap.sum())
    return result


def weight_summary(weights: np.ndarray) -> dict[str, float]:
    """Return facts about the weights of a round.

    Args:
        weights: [M], M >= 1.

    Returns:
        mean, std (population), min, max, zeros (how many are below 1e-6), and entropy
        -sum_k w_k ln w_k in nats, with 0 ln 0 = 0: ln M for uniform weights, 0 if one client has
        all the weight.

    Raises:
        ValueError: There is no client.

    Example:
        >>> weight_summary(np.array([0.5, 0.5, 0.0]))["zeros"]
        1.0
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
