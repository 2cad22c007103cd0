"""Any desired model, knowing the others' updates and weights."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from fedsdg.federation.environment.attacks.attack import LARGEST, Scene, UpdateAttack
from fedsdg.parts import Range, part


@part
class Replacement(UpdateAttack):
    """x = (T − W_h m) / W_a from every attacker, so that the server's Σ w_k Δ_k is T.

    m = Σ_honest w_k Δ_k / W_h, and W_h, W_a are the total weights of honest clients and attackers;
    the wanted step is T = −scale · m (the chapter on aggregation; Bagdasaryan et al. 2020).
    """

    scale: Annotated[float, Range(0, LARGEST)] = 1.0
    "the weighted mean becomes −scale · mean of the honest updates"

    def forge(self, scene: Scene) -> Tensor:
        weights, theirs = scene.view.weights, scene.attackers
        if theirs.all():
            return -self.scale * scene.known.mean(0)
        attacking, honest = float(weights[theirs].sum()), float(weights[~theirs].sum())
        if not attacking > 0:
            raise ValueError("model replacement: the server gives the attackers no weight at all")
        neglected = torch.from_numpy(weights[~theirs]).to(scene.known) @ scene.known
        wanted = -self.scale * (neglected / honest if honest > 0 else scene.known.mean(0))
        return (wanted - neglected) / attacking
