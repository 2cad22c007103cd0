"""What every loss has: a number for each sample."""

from __future__ import annotations

from torch import Tensor


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
