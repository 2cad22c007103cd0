"""Losses: what a client's training minimises, sample by sample."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from fedsdg.lazy import Tensor, torch
from fedsdg.parts import Part, Several, Share


class Loss(Part, kind=True):
    """Base of losses that a config can choose.

    A loss is called as `loss(logits [B, C], labels [B], reduction="none")` and returns [B]. `weigh`
    says how samples count in the mean of a batch.
    """

    plain: ClassVar[bool] = False
    "whether it is the plain cross-entropy, which compiled passes compute themselves"

    def __call__(self, logits: Tensor, labels: Tensor, reduction: str = "none") -> Tensor:
        """Return the losses of B samples."""
        raise NotImplementedError

    def weigh(self, labels: Tensor) -> Tensor | None:
        """Return the weights [n] of samples in the mean of a batch; None: all are equal."""
        return None

    def require_classes(self, num_classes: int) -> None:
        """Raise ValueError if the loss does not fit so many classes."""


class CrossEntropy(Loss, name="cross-entropy"):
    """-sum_c q_c w_c log p_c with q_c = (1 - eps) [c = y] + eps / C.

    The mean of a batch divides by the sum of w_y, so a class of weight 2 counts twice.
    """

    label_smoothing: Share = 0.0
    "ε, share of all classes in every label"
    class_weights: Several[Annotated[float, Field(ge=1e-06, le=1000000.0)]] | None = None
    "a weight for each class; null: all count alike"

    def __call__(self, logits: Tensor, labels: Tensor, reduction: str = "none") -> Tensor:
        """Return the losses of B samples."""
        weights = None if self.class_weights is None else logits.new_tensor(self.class_weights)
        return torch.nn.functional.cross_entropy(
            logits, labels, weights, reduction=reduction, label_smoothing=self.label_smoothing
        )

    @property
    def plain(self) -> bool:  # type: ignore[override]
        """Whether it has neither weights nor smoothing."""
        return self.class_weights is None and not self.label_smoothing

    def weigh(self, labels: Tensor) -> Tensor | None:
        """Return the weight of each sample's class."""
        if self.class_weights is None:
            return None
        weights = torch.tensor(self.class_weights, dtype=torch.float64, device=labels.device)
        return weights[labels]

    def require_classes(self, num_classes: int) -> None:
        """Raise ValueError unless there is a weight for each class."""
        if self.class_weights is not None and len(self.class_weights) != num_classes:
            raise ValueError(
                f"class_weights has {len(self.class_weights)} weights for {num_classes} classes; "
                "give one for each class"
            )


class Focal(Loss, name="focal"):
    """-(1 - p_y)^gamma log p_y (Lin et al. 2017, without alpha); gamma = 0 is cross-entropy."""

    gamma: Annotated[float, Field(ge=0, le=100)] = 2.0
    "γ of −(1 − p)^γ log p"

    def __call__(self, logits: Tensor, labels: Tensor, reduction: str = "none") -> Tensor:
        """Return the losses of B samples."""
        log_p = torch.nn.functional.log_softmax(logits, 1).gather(1, labels[:, None])[:, 0]
        smallest = torch.finfo(log_p.dtype).tiny  # its power has a finite slope
        missing = (-torch.expm1(log_p)).clamp_min(smallest)
        return -missing.pow(self.gamma) * log_p
