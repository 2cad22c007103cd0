"""FFA-LoRA's choice of what trains: one factor of every adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsdg.federation.personalisation.personalisation import Personalisation
from fedsdg.parts import part


@part
class FrozenA(Personalisation):
    """FFA-LoRA (Sun et al. 2024): every A stays as drawn; B and the head are trained and sent.

    The mean of the products B_k A is then the product of the mean B with A.
    """

    @property
    def adapters(self) -> Mapping[str, Any]:
        return {"factor_a": "frozen"}
