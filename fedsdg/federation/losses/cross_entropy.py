"""The cross-entropy, with smoothed labels and weights of the classes where they are asked for."""

from __future__ import annotations

import functools
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsdg.federation.losses.loss import Loss
from fedsdg.parts import Range, part


@part
class CrossEntropy(Loss):
    """−Σ_c q_c w_c log p_c, q_c = (1 − ε) [c = y] + ε / C; w [C] is 1 where there are no weights.

    The mean of a batch divides by Σ w_y, so that it is ``torch.nn.functional.cross_entropy`` of the
    batch.
    """

    label_smoothing: Annotated[float, Range(0, 1)] = 0.0
    "ε, share of all classes in every label"
    class_weights: Annotated[tuple[float, ...] | None, Range(1e-6, 1e6)] = None
    "a weight for each class; the mean over a batch divides by the weights, as PyTorch's does"

    def __call__(self, logits: Tensor, labels: Tensor, reduction: str = "none") -> Tensor:
        weights = self.class_weights
        return cross_entropy(
            logits,
            labels,
            weight=None if weights is None else _on(weights, logits.dtype, logits.device),
            label_smoothing=self.label_smoothing,
            reduction=reduction,
        )

    @property
    def plain(self) -> bool:
        return self.class_weights is None and not self.label_smoothing

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


@functools.lru_cache(maxsize=16)
def _on(weights: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The weights where they are needed, sent there once."""
    return torch.tensor(weights, dtype=dtype, device=device)
