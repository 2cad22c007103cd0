"""FedRep's personalisation: heads of clients' own, trained before the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fedsdg.federation.personalisation.personalisation import Personalisation
from fedsdg.parts import Range, part


@part
class OwnHead(Personalisation):
    """FedRep (Collins et al. 2021): every client has its own head on a common representation.

    A round trains the head alone, then the shared adapters alone for the usual epochs. A client
    that has never taken part is judged with the head all started from.
    """

    head_epochs: Annotated[int, Range(1)] = 2
    "epochs of the head alone, before the usual ones of the shared adapters alone"

    @property
    def adapters(self) -> Mapping[str, Any]:
        return {"head": "private"}

    @property
    def private_first(self) -> int:
        return self.head_epochs
