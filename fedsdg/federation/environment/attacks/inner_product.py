"""A step against the honest mean."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from fedsdg.federation.environment.attacks.attack import LARGEST, Scene, UpdateAttack
from fedsdg.parts import Range, part


@part
class InnerProduct(UpdateAttack):
    """−ε · mean of the honest updates (Xie et al. 2019)."""

    epsilon: Annotated[float, Range(0, LARGEST)] = 0.5
    "−ε · mean of the honest updates"

    def forge(self, scene: Scene) -> Tensor:
        return -self.epsilon * scene.known.mean(0)
