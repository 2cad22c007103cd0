"""A private head behind a gate that is learned on samples that the head does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fedsdg.federation.personalisation.personalisation import Personalisation
from fedsdg.parts import Range, part


@part
class GatedHead(Personalisation):
    """A client's head is (1 − m) W_g + m W_p: its own W_p behind one gate m = σ(a).

    On a stratified quarter of a client's training samples W_p is fixed, on the others m is, so that
    the gate learns on samples that W_p does not fit. Adapters and W_g learn from all of them. W_p
    moves by η_p, a by η_m; neither is sent.
    """

    gate_init: Annotated[float, Range()] = 0.0
    "initial gate logit a; m = σ(a)"
    gate_fixed: Annotated[float | None, Range(0, 1)] = None
    "a gate in [0, 1] that is not learned; null: it is learned"
    gate_samples: Literal["held-out", "all"] = "held-out"
    """which samples teach the gate: a stratified quarter, `held-out`, from which the private head
    does not learn, and the gate from no other; or `all` that a client trains on teach both"""

    @property
    def adapters(self) -> Mapping[str, Any]:
        return {"head": "gated", "gate_init": self.gate_init, "gate_fixed": self.gate_fixed}
