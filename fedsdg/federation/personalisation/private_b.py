"""FedSA-LoRA's personalisation: one factor of every adapter is the client's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from fedsdg.federation.personalisation.personalisation import Personalisation
from fedsdg.parts import part


@part
class PrivateB(Personalisation):
    """FedSA-LoRA (Guo et al. 2025): the A's are shared, every client keeps B's of its own.

    A client that has never taken part has B = 0: the frozen backbone with the head. For
    classification the authors leave every client its own head, too.
    """

    head: Literal["shared", "private"] = "shared"
    "one `shared` head, or a `private` one for every client, and then no global model"

    @property
    def adapters(self) -> Mapping[str, Any]:
        return {"factor_b": "private", "head": self.head}
