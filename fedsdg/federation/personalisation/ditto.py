"""Ditto's personalisation: a model of the client's own, held near to the global one."""

from __future__ import annotations

from typing import Annotated

from fedsdg.federation.own_models import ditto
from fedsdg.federation.own_models.own_model import OwnModel
from fedsdg.federation.personalisation.personalisation import Personalisation
from fedsdg.parts import Range, part


@part
class Ditto(Personalisation):
    """Ditto (Li et al. 2021): beside FedAvg's model a client trains its own, held near to it."""

    strength: Annotated[float, Range(0)] = 0.1
    "λ that holds a client's own model to the global one"

    @property
    def own(self) -> OwnModel:
        return ditto.Ditto(self.strength)
