"""Fine-tuning of the global model by each client for itself."""

from __future__ import annotations

from typing import Annotated

from fedsdg.federation.personalisation.personalisation import Personalisation
from fedsdg.parts import Range, part


@part
class FineTune(Personalisation):
    """At evaluation every client trains a copy of the global model (Yu et al. 2020)."""

    personal_epochs: Annotated[int, Range(1)] = 2
    "e, local epochs before evaluation"

    @property
    def epochs(self) -> int:
        return self.personal_epochs
