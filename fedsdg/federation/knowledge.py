"""What a server is told of its clients beforehand, where a method assumes that it knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from fedsdg.data.label_clusters import label_clusters


class ToldClusters(Protocol):
    """A rule that can be given the cluster of every client."""

    def with_clusters(
        self, state: Mapping[str, Tensor], clusters: Sequence[int] | np.ndarray
    ) -> dict[str, Tensor]: ...


@dataclass(frozen=True)
class LabelClusters:
    """The clusters of clients whose training labels are distributed alike (``label_clusters``)."""

    count: int

    def __call__(
        self,
        rule: ToldClusters,
        state: Mapping[str, Tensor],
        labels: np.ndarray,
        shards: Sequence[np.ndarray],
        num_classes: int,
    ) -> dict[str, Tensor]:
        """The rule's state before the first round, with a cluster for each client."""
        return rule.with_clusters(state, label_clusters(labels, shards, self.count, num_classes))
