"""FedDPA's personalisation: a mixture of a client's adapter with the common one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fedsdg.federation.personalisation.personalisation import Personalisation
from fedsdg.parts import Range, part


@part
class DualAdapter(Personalisation):
    """FedDPA-T (Yang et al. 2024): an adapter u for all, one v for each, and their mixture.

    A client's weight is W + s ((1 − λ) B_u A_u + λ B_v A_v). A round trains v alone on that
    mixture, then u and the head, without v, for the usual epochs. v starts as any LoRA does, from
    one draw for all clients. With ``per-sample`` a client is judged with α_i = λ · mean cosine of
    image i and five of its training images in place of λ; training is the same.
    """

    mixture: Literal["fixed", "per-sample"] = "fixed"
    """the share of a client's own adapter v is `fixed` at λ, or when it is judged λ times how much
    an image is like the client's own (`per-sample`)"""
    weight: Annotated[float, Range(0, 1)] = 0.5
    "λ, share of a client's own adapter v"
    personal_epochs: Annotated[int, Range(1)] = 2
    "epochs of v alone, before the usual ones of the common adapter"

    @property
    def adapters(self) -> Mapping[str, Any]:
        return {
            "branch": "dual",
            "gate_fixed": self.weight,
            "composition": "mixture",
            "private_init": "lora",
        }

    @property
    def private_first(self) -> int:
        return self.personal_epochs

    @property
    def shared_alone(self) -> bool:
        return True

    @property
    def anchors(self) -> int:
        return 5 if self.mixture == "per-sample" else 0
