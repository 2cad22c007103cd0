"""A part of the samples in which every class has its share."""

from __future__ import annotations

import numpy as np


def stratified_choice(labels: np.ndarray, total: int, generator: np.random.Generator) -> np.ndarray:
    """Sorted indices of ``total`` samples, each class in proportion to its size.

    The counts per class follow from the class sizes alone (largest remainder, ties to the smaller
    class id, in exact integer arithmetic); only which samples they are is drawn.
    """
    classes, counts = np.unique(labels, return_counts=True)
    quota, remainder = np.divmod(total * counts, len(labels))
    order = np.lexsort((classes, -remainder))
    quota[order[: total - int(quota.sum())]] += 1
    chosen = [
        generator.permutation(np.flatnonzero(labels == c))[:q]
        for c, q in zip(classes, quota, strict=True)
    ]
    return np.sort(np.concatenate(chosen))
