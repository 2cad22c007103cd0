"""The own update the other way round."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from fedsdg.federation.environment.attacks.attack import LARGEST, Scene, UpdateAttack
from fedsdg.parts import Range, part


@part
class SignFlip(UpdateAttack):
    """−scale · Δ_k (Li et al. 2019, RSA)."""

    scale: Annotated[float, Range(0, LARGEST)] = 1.0
    "−scale · own update"

    def forge(self, scene: Scene) -> Tensor:
        return -self.scale * scene.own
