"""Noise in place of the update."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from fedsdg.federation.environment.attacks.attack import LARGEST, Scene, UpdateAttack
from fedsdg.parts import Range, part


@part
class Gaussian(UpdateAttack):
    """‖Δ_k‖ = scale · median ‖honest updates‖, in a uniform direction (Blanchard et al. 2017).

    A scale of about 1 is the noise of the chapter on aggregation that costs in proportion to the
    attackers' share, much more the noise that makes the mean random.
    """

    scale: Annotated[float, Range(0, LARGEST)] = 1.0
    "length of the noise, in median lengths of the honest updates"

    def forge(self, scene: Scene) -> Tensor:
        norms = torch.linalg.vector_norm(scene.known, dim=1)
        noise = scene.normal(*scene.own.shape)
        noise /= torch.linalg.vector_norm(noise, dim=1, keepdim=True).clamp_min(1e-300)
        return noise * (self.scale * torch.quantile(norms, 0.5))
