"""No personalisation: FedAvg's."""

from __future__ import annotations

from fedsdg.federation.personalisation.personalisation import Personalisation
from fedsdg.parts import part


@part
class Shared(Personalisation):
    """Every client uses the global model."""
