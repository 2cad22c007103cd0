"""A little is enough: an attack within the spread of the honest updates."""

from __future__ import annotations

from statistics import NormalDist
from typing import Annotated

from torch import Tensor

from fedsdg.federation.environment.attacks.attack import LARGEST, Scene, UpdateAttack
from fedsdg.parts import Range, part


@part
class LittleIsEnough(UpdateAttack):
    """μ + z σ per coordinate (Baruch et al. 2019).

    μ and σ (population) are those of the honest updates, which the attackers are taken to know.
    Of M clients A attack; s = ⌊M/2 + 1⌋ − A honest ones more make a majority, and z is the largest
    for which so many are expected beyond it: z_max = Φ⁻¹((M − A − s) / (M − A)). Where the
    attackers are a majority already s counts as 1, and z_max is never below 0.
    """

    z: Annotated[float | None, Range(-LARGEST, LARGEST)] = None
    "standard deviations from the mean; null: the largest that the cohort's numbers permit"

    def forge(self, scene: Scene) -> Tensor:
        known, attackers = scene.known, scene.attackers
        z = z_max(len(attackers), int(attackers.sum())) if self.z is None else self.z
        mean = known.mean(0)
        return mean + z * (known - mean).square().mean(0).sqrt()


def z_max(clients: int, attackers: int) -> float:
    """The z of ALIE for a cohort; see :class:`LittleIsEnough`."""
    honest = clients - attackers
    supporters = max(1, clients // 2 + 1 - attackers)
    if honest <= supporters:
        return 0.0
    return max(0.0, NormalDist().inv_cdf((honest - supporters) / honest))
