"""APFL's personalisation: a mixture of a client's whole model with the global one."""

from __future__ import annotations

from typing import Annotated

from fedsdg.federation.personalisation.personalisation import Personalisation
from fedsdg.parts import Range, part


@part
class Apfl(Personalisation):
    """APFL (Deng et al. 2020): clients use v̂ = a v + (1 − a) w, w being FedAvg's.

    With every batch v goes along −∇_v f(v̂), which is −a ∇f(v̂), at the w of that moment; then w goes
    along −∇f(w). v begins as the common initialisation. The mixture is of parameters, so of the
    adapters' factors and not of their products, and a is fixed.
    """

    weight: Annotated[float, Range(0, 1)] = 0.5
    "a of v̂ = a v + (1 − a) w"

    @property
    def interleaved(self) -> bool:
        return True

    @property
    def shared_alone(self) -> bool:
        return True

    @property
    def mixed_weight(self) -> float | None:
        return self.weight
