"""Clients that name the classes otherwise: a cycle over some of the labels."""

from __future__ import annotations

import numpy as np


def label_cycle(num_classes: int, classes: int, generator: np.random.Generator) -> np.ndarray:
    """What each label becomes, [C] int64: ``classes`` labels in a random cycle, the others kept.

    With a random permutation π of the C labels, π_i becomes π_{i+1} for i < m, where m is
    ``classes`` and π_m stands for π_0: all sets of m labels and all (m − 1)! cycles over them are
    alike probable, and none of the m labels stays what it is. With m = 0 all labels are kept.

    Raises ValueError for one label, or more than there are.
    """
    if classes != 0 and not 2 <= classes <= num_classes:
        raise ValueError(
            f"a cycle over {classes} labels is impossible with {num_classes} classes; "
            f"use 2 to {num_classes}, or 0 for none"
        )
    chosen = generator.permutation(num_classes)[:classes]
    becomes = np.arange(num_classes)
    becomes[chosen] = np.roll(chosen, -1)
    return becomes
