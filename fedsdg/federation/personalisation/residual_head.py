"""Fed-RoD's personalisation: a private head on top of a generic one that is trained by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsdg.federation.personalisation.personalisation import Personalisation
from fedsdg.parts import part


@part
class ResidualHead(Personalisation):
    """Fed-RoD (Chen & Chao 2022), linear: a client's head is W_g + W_p.

    With every batch W_p takes a step along the cross-entropy of W_g + W_p, everything else being
    fixed; then adapters and W_g take one along the balanced softmax of W_g alone, whose scores have
    the logarithms of the client's class shares added. W_p begins at 0, moves by η_p and is not
    sent.
    """

    @property
    def adapters(self) -> Mapping[str, Any]:
        return {"head": "residual"}

    @property
    def interleaved(self) -> bool:
        return True

    @property
    def shared_alone(self) -> bool:
        return True

    @property
    def balanced(self) -> bool:
        return True
