"""Whether an accuracy says more than a guess would: compared with the most frequent class.

An accuracy is *at chance* where a one-sided binomial test at the 95 % level does not find it above
the share of the test images' most frequent class, which is 1/C for C equally frequent classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsdg.data.partition_files import read_partition
from fedsdg.files.places import partition_of

#: The meaning of the remark, for those who read it.
MEANING = (
    '"At chance" means: at the 95 % level (one-sided binomial test) not above the accuracy of '
    "always naming the most frequent class of these test images."
)
#: What is measured on the global test set, of a model or as a mean over clients.
ON_THE_GLOBAL_TEST = frozenset({"global_accuracy", "expected_accuracy"})


@dataclass(frozen=True)
class Chance:
    """The accuracy of always naming the most frequent class of some test images."""

    images: int
    #: Images of the most frequent class.
    largest: int

    @classmethod
    def of_labels(cls, labels: np.ndarray) -> Chance:
        """Return the chance of test images with these labels [n], n ≥ 1."""
        return cls(len(labels), int(np.bincount(labels).max()))

    def remark(self, accuracy: float) -> str:
        """Return "at chance (1/7)" for an accuracy that may be luck, else an empty string.

        The accuracy a of n images is at chance if P(X ≥ a·n) > 0.05 for X ~ Binomial(n, p), where
        p is the share of the most frequent class. A mean over clients counts as one model.
        """
        from scipy.special import bdtrc

        share, right = self.largest / self.images, round(accuracy * self.images)
        if self.largest < self.images and right and bdtrc(right - 1, self.images, share) <= 0.05:
            return ""
        even = self.images % self.largest == 0
        return f"at chance ({f'1/{self.images // self.largest}' if even else f'{share:.2f}'})"


def chance_of_run(result: Mapping[str, Any]) -> Chance | None:
    """Return the chance on a run's global test set, by the partition in the working directory.

    Args:
        result: What the run's ``result.json`` holds.

    Returns:
        None if the partition is not there or is another one than the run's.
    """
    run = result["config"]
    clients = run["federation"]["clients"]
    file = partition_of(run["dataset"], clients, run["skew"], run["seed"])
    if not file.is_file():
        return None
    partition = read_partition(file)
    labels = partition.label[partition.global_test()]
    if partition.sha256 != result.get("partition_hash") or not len(labels):
        return None
    return Chance.of_labels(labels)
