"""A running mix of a client's own model and the aggregate, as a personalisation."""

from __future__ import annotations

from typing import Annotated

from fedsdg.federation.own_models.interpolation import Interpolation
from fedsdg.federation.own_models.own_model import OwnModel
from fedsdg.federation.personalisation.personalisation import Personalisation
from fedsdg.parts import Range, part


@part
class Interpolate(Personalisation):
    """Every client keeps a running mix of its model and the aggregate (see ``Interpolation``)."""

    weight: Annotated[float | None, Range(0, 1)] = 0.5
    "a of v ← a v + (1 − a) θ; null: picked for each client on its validation data"

    @property
    def own(self) -> OwnModel:
        return Interpolation(self.weight)
