"""Whether an accuracy says more than a guess would: compared with the most frequent class.

An accuracy is *at chance* if a one-sided binomial test at the 95 % level does not find it above the
share of the most frequent class of the test images, which is 1/C for C equally frequent classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedsdg.files.places import PARTITION, filled

MEANING = (
    '"At chance" means: at the 95 % level (one-sided binomial test) not above the accuracy of '
    "always naming the most frequent class of these test images."
)
"""The meaning of the remark, for those who read it."""


def remark(accuracy: float, labels: np.ndarray, held: ArrayLike | None = None) -> str:
    """Return "at chance (1/7)" for an accuracy that may be luck, else an empty string.

    The accuracy a of n images is at chance if P(X ≥ a·n) > 0.05 for X ~ Binomial(n, p), where p is
    the share of the most frequent class. A mean over clients counts as one model.

    Args:
        accuracy: Share of right answers, in [0, 1].
        labels: int64 [n] true classes of the test images.
        held: [C] the numbers by which the classes weigh; None: all images weigh the same.
    """
    from scipy.special import bdtrc

    images = len(labels)
    weights = np.bincount(labels) if held is None else np.array(held)
    largest = round(images * weights.max() / weights.sum())
    right = round(accuracy * images)
    if largest < images and right and bdtrc(right - 1, images, largest / images) <= 0.05:
        return ""
    even = images % largest == 0
    return f"at chance ({f'1/{images // largest}' if even else f'{largest / images:.2f}'})"


def labels_of_run(result: Mapping[str, Any]) -> np.ndarray | None:
    """Return the true classes of a run's global test set, by the partition in this folder.

    Args:
        result: What the run's ``result.json`` holds.

    Returns:
        int64 [n], or None if the partition is not there or is another one than the run's.
    """
    from fedsdg.data.partition_files import read_partition

    run = result["config"]
    seed = run.get("partition_seed", run["seed"])
    clients = run["federation"]["clients"]
    file = filled(PARTITION, dataset=run["dataset"], clients=clients, skew=run["skew"], seed=seed)
    if not file.is_file():
        return None
    partition = read_partition(file)
    same = partition.sha256 == result.get("partition_hash")
    labels = partition.label[partition.global_test()]
    return labels if same and len(labels) else None
