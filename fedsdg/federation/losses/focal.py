"""The focal loss, which samples that are right already weigh little in."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from fedsdg.federation.losses.loss import Loss
from fedsdg.parts import Range, part


@part
class Focal(Loss):
    """−(1 − p_y)^γ log p_y (Lin et al. 2017, without their α); γ = 0 is the cross-entropy."""

    gamma: Annotated[float, Range(0, 100)] = 2.0
    "γ of −(1 − p)^γ log p"

    def __call__(self, logits: Tensor, labels: Tensor, reduction: str = "none") -> Tensor:
        log_p = log_softmax(logits, 1).gather(1, labels[:, None])[:, 0]
        # 1 − p without cancellation. Where it is 0 its power has no gradient for γ < 1.
        rest = (-torch.expm1(log_p)).clamp_min(torch.finfo(log_p.dtype).tiny)
        each = -(rest**self.gamma) * log_p
        return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()
