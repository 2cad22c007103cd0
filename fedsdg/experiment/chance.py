"""Whether an accuracy says more than a guess would: compared with the most frequent class.

An accuracy is *at chance* if a one-sided binomial test at the 95 % level does not find it above the
share of the most frequent class of the test images, which is 1/C for C equally frequent classes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

MEANING = (
    '"At chance" means: at the 95 % level (one-sided binomial test) not above the accuracy of '
    "always naming the most frequent class of these test images."
)
"""The meaning of the remark, for those who read it."""


def remark(accuracy: float, counts: ArrayLike, held: ArrayLike | None = None) -> str:
    """Return "at chance (1/7)" for an accuracy that may be luck, else an empty string.

    The accuracy a of n images is at chance if P(X ≥ a·n) > 0.05 for X ~ Binomial(n, p), where p is
    the share of the most frequent class. A mean over clients counts as one model.

    Args:
        accuracy: Share of right answers, in [0, 1].
        counts: int64 [C] test images of each class.
        held: [C] the numbers by which the classes weigh; None: all images weigh the same.
    """
    from scipy.special import bdtrc

    images = int(np.sum(counts))
    weights = np.array(counts if held is None else held)
    largest = round(images * weights.max() / weights.sum())
    right = round(accuracy * images)
    if largest < images and right and bdtrc(right - 1, images, largest / images) <= 0.05:
        return ""
    even = images % largest == 0
    return f"at chance ({f'1/{images // largest}' if even else f'{largest / images:.2f}'})"
