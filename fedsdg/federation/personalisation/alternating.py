"""RoLoRA's choice of what trains: the factors of adapters take turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsdg.federation.personalisation.personalisation import Personalisation
from fedsdg.parts import part


@part
class Alternating(Personalisation):
    """RoLoRA (Chen et al. 2025): B and the head train in odd rounds, A and the head in even ones.

    Only what trains is sent, so the mean of the products is the product of the means. A client that
    sat out the round before lacks both factors and downloads them. (The authors' code freezes the
    head; a head that starts at random has to learn.)
    """

    @property
    def adapters(self) -> Mapping[str, Any]:
        return {"alternate": True}
