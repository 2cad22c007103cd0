"""Any desired model, knowing nothing of the others but the last aggregate."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from fedsdg.federation.environment.attacks.attack import LARGEST, Scene, UpdateAttack
from fedsdg.parts import Range, part


@part
class BlindReplacement(UpdateAttack):
    """T · M / A from every attacker, T = −scale · mean of the attackers' own updates.

    Late in training a client's model differs little from the model that it downloaded, which
    therefore stands for the others' models: their updates count as 0, and their weights as equal.
    The server then takes T plus the honest part that was neglected (the chapter on aggregation;
    Bagdasaryan et al. 2020).
    """

    scale: Annotated[float, Range(0, LARGEST)] = 1.0
    "the weighted mean is to become −scale · mean of the attackers' own updates"

    def forge(self, scene: Scene) -> Tensor:
        wanted = -self.scale * scene.own.mean(0)
        return wanted * (len(scene.attackers) / int(scene.attackers.sum()))
