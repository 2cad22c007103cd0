"""FedPer's personalisation: heads of clients' own, trained with the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsdg.federation.personalisation.personalisation import Personalisation
from fedsdg.parts import part


@part
class PrivateHead(Personalisation):
    """FedPer (Arivazhagan et al. 2019): own heads as in FedRep, but everything trains jointly."""

    @property
    def adapters(self) -> Mapping[str, Any]:
        return {"head": "private"}
