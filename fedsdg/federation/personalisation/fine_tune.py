"""Fine-tuning of the global model by each client for itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fedsdg.federation.personalisation.personalisation import Personalisation
from fedsdg.parts import Absent, Range, part


@part
class FineTune(Personalisation):
    """At evaluation every client trains a copy of the global model or of its head, then drops it.

    Yu et al. (2020) train the whole copy. FedBABU (Oh et al. 2022) freezes the head in the rounds,
    so that clients train and send the body alone, and trains it before evaluation. The authors'
    body is a whole network; here it is what clients share but for the head, usually the adapters.
    """

    personal_epochs: Annotated[int, Range(0)] = 2
    "e, local epochs before evaluation; 0: clients are evaluated with the global model"
    tunes: Annotated[Literal["all", "head"], Absent("all")] = "all"
    "what trains before evaluation: `all`, or the `head` alone"
    head: Annotated[Literal["shared", "frozen"], Absent("shared")] = "shared"
    """`shared`: the head trains with the rest; `frozen`: until evaluation it keeps its first
    values, drawn by seed and the same for all clients, and is not sent"""

    @property
    def adapters(self) -> Mapping[str, Any]:
        return {} if self.head == "shared" else {"head": self.head}

    @property
    def epochs(self) -> int:
        return self.personal_epochs

    @property
    def head_alone(self) -> bool:
        return self.tunes == "head"
