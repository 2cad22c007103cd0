"""Poisoned data: attackers train on wrong labels."""

from __future__ import annotations

from typing import Literal

import numpy as np
from torch import Tensor

from fedsdg.federation.environment.attackers import AttackView
from fedsdg.federation.environment.attacks.attack import require_matching
from fedsdg.parts import part


@part
class LabelFlip:
    """y → C − 1 − y or y → (y + 1) mod C, and what comes of training on it is sent as it is.

    Opposite labels leave the middle one of an odd number of classes (Biggio et al. 2012; Tolpegin
    et al. 2020).
    """

    to: Literal["opposite", "next"] = "opposite"
    "`opposite` y → C − 1 − y, or `next` y → y + 1"

    def __call__(
        self,
        updates: Tensor,
        attackers: np.ndarray,
        view: AttackView,
        generator: np.random.Generator,
    ) -> Tensor:
        require_matching(updates, attackers, view)
        return updates

    def labels(self, labels: np.ndarray, num_classes: int) -> np.ndarray:
        """The flipped labels [n]."""
        return _FLIPS[self.to](labels, num_classes)


def _opposite(labels: np.ndarray, num_classes: int) -> np.ndarray:
    return num_classes - 1 - labels


def _next(labels: np.ndarray, num_classes: int) -> np.ndarray:
    return (labels + 1) % num_classes


_FLIPS = {"opposite": _opposite, "next": _next}
