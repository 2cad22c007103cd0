"""A part of the samples in which every class has its share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedsdg.rng import stream

if TYPE_CHECKING:
    from fedsdg.data.datasets import ImageData

#: Part of the samples that becomes the test set where a data set has none.
TEST_SHARE = 0.2


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


def strata(labels: np.ndarray, domain: np.ndarray | None, num_classes: int) -> np.ndarray:
    """The class of every sample [n], or its class and domain as one number."""
    return labels if domain is None else domain * num_classes + labels


def fixed_test_set(data: ImageData, share: float = TEST_SHARE) -> np.ndarray:
    """Sorted indices of the test images of a data set, the same whatever is done with it.

    Its own test set; where it has none ⌈share · n⌉ of its n samples, stratified by class and
    domain. They are drawn from the stream ``test-split``, so they follow from the labels alone.
    """
    if data.official_test.any():
        return np.flatnonzero(data.official_test)
    return drawn_test_set(data.labels, data.domain, data.num_classes, share)


def drawn_test_set(
    labels: np.ndarray, domain: np.ndarray | None, num_classes: int, share: float = TEST_SHARE
) -> np.ndarray:
    """As ``fixed_test_set``, of data that have no test set of their own."""
    which = strata(labels, domain, num_classes)
    return stratified_choice(which, math.ceil(share * len(which)), stream("test-split", 0))
