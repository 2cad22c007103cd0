"""What attacks have in common: what they see of a round, and that honest rows stay as they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsdg.federation.environment.attackers import AttackView

#: Beyond it float32 would overflow, and an attack is to be an attack and no infinity.
LARGEST = 1e6


@dataclass(frozen=True, eq=False)
class Scene:
    """The arguments of an attack together, and what of them most attacks need."""

    updates: Tensor
    attackers: np.ndarray
    view: AttackView
    generator: np.random.Generator

    @property
    def rows(self) -> Tensor:
        """bool [M] where the updates are: which of them are the attackers'."""
        return torch.from_numpy(self.attackers).to(self.updates.device)

    @property
    def own(self) -> Tensor:
        """The attackers' own honest updates, float64 [A, d]."""
        return self.updates[self.rows].double()

    @property
    def known(self) -> Tensor:
        """The honest updates, float64; where all attack their own stand for them."""
        return self.own if self.attackers.all() else self.updates[~self.rows].double()

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers, float64."""
        return torch.from_numpy(self.generator.standard_normal(shape)).to(self.updates.device)


class UpdateAttack:
    """An attack on updates: subclasses say by ``forge`` what the attackers send."""

    def __call__(
        self,
        updates: Tensor,
        attackers: np.ndarray,
        view: AttackView,
        generator: np.random.Generator,
    ) -> Tensor:
        require_matching(updates, attackers, view)
        if not attackers.any():
            return updates
        scene = Scene(updates, attackers, view, generator)
        forged = updates.clone()
        forged[scene.rows] = self.forge(scene).to(updates.dtype)
        return forged

    def forge(self, scene: Scene) -> Tensor:
        """The attackers' rows [A, d], or one row [d] for all of them."""
        raise NotImplementedError

    def labels(self, labels: np.ndarray, num_classes: int) -> np.ndarray:
        """The labels [n] as they are."""
        return labels


def require_matching(updates: Tensor, attackers: np.ndarray, view: AttackView) -> None:
    """Raise ``ValueError`` unless all are of the same M clients and d parameters."""
    rows = (len(updates),)
    if attackers.dtype != bool or attackers.shape != rows:
        raise ValueError(
            f"attackers must be bool [{rows[0]}], one per update, not {attackers.dtype} "
            f"{list(attackers.shape)}"
        )
    if view.weights.shape != rows or view.start.shape != updates.shape:
        raise ValueError(
            f"an attack on updates {list(updates.shape)} sees weights {list(view.weights.shape)} "
            f"and starts {list(view.start.shape)}; they must be [M] and [M, d] of the same clients"
        )
