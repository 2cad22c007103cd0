"""The own update, out of proportion."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from fedsdg.federation.environment.attacks.attack import LARGEST, Scene, UpdateAttack
from fedsdg.parts import Range, part


@part
class Scaling(UpdateAttack):
    """scale · Δ_k: an honest direction, but a length that outweighs the others.

    Bagdasaryan et al. 2020.
    """

    scale: Annotated[float, Range(0, LARGEST)] = 10.0
    "scale · own update"

    def forge(self, scene: Scene) -> Tensor:
        return self.scale * scene.own
