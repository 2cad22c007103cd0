"""Losses: what a client's training makes small, sample by sample.

A loss is called as ``loss(logits [B, C], labels [B], reduction="none")`` and returns [B]. A batch's
loss is the mean over its samples, or Σ of the losses / Σ of the weights where a loss weighs them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax


class Loss:
    """What every loss has: equal weights, any number of classes."""

    def __call__(self, logits: Tensor, labels: Tensor, reduction: str = "none") -> Tensor:
        """The loss of every sample, [B]."""
        raise NotImplementedError

    def weigh(self, labels: Tensor) -> Tensor | None:
        """The weights [n] by which samples count in the mean of a batch; None: equally."""
        return None

    def require_classes(self, num_classes: int) -> None:
        """Raise ``ValueError`` where a data set's number of classes is not the loss's."""


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """−Σ_c q_c w_c log p_c, q_c = (1 − ε) [c = y] + ε / C, ε the ``label_smoothing``.

    ``class_weights`` w [C], all 1 where there are none. The mean of a batch divides by Σ w_y, so
    that it is ``torch.nn.functional.cross_entropy`` of the batch.
    """

    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] | None = None

    def __call__(self, logits: Tensor, labels: Tensor, reduction: str = "none") -> Tensor:
        weights = self.class_weights
        return cross_entropy(
            logits,
            labels,
            weight=None if weights is None else _on(weights, logits.dtype, logits.device),
            label_smoothing=self.label_smoothing,
            reduction=reduction,
        )

    def weigh(self, labels: Tensor) -> Tensor | None:
        if self.class_weights is None:
            return None
        return _on(self.class_weights, torch.float64, labels.device)[labels]

    def require_classes(self, num_classes: int) -> None:
        if self.class_weights is not None and len(self.class_weights) != num_classes:
            raise ValueError(
                f"training.loss has {len(self.class_weights)} class_weights, but the data have "
                f"{num_classes} classes; give one weight for each class"
            )


@dataclass(frozen=True)
class Focal(Loss):
    """−(1 − p_y)^γ log p_y (Lin et al. 2017, without their α); γ = 0 is the cross-entropy."""

    gamma: float = 2.0

    def __call__(self, logits: Tensor, labels: Tensor, reduction: str = "none") -> Tensor:
        log_p = log_softmax(logits, 1).gather(1, labels[:, None])[:, 0]
        # 1 − p without cancellation. Where it is 0 its power has no gradient for γ < 1.
        rest = (-torch.expm1(log_p)).clamp_min(torch.finfo(log_p.dtype).tiny)
        each = -(rest**self.gamma) * log_p
        return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()


@functools.lru_cache(maxsize=16)
def _on(weights: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The weights where they are needed, sent there once."""
    return torch.tensor(weights, dtype=dtype, device=device)
