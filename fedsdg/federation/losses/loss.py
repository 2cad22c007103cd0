"""What every loss has: a number for each sample, and by what samples count in a mean."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor


class Loss:
    """What every loss has: equal weights, any number of classes."""

    def __call__(self, logits: Tensor, labels: Tensor, reduction: str = "none") -> Tensor:
        """The loss of every sample, [B]."""
        raise NotImplementedError

    def weigh(self, labels: Tensor) -> Tensor | None:
        """The weights [n] by which samples count in the mean of a batch; None: equally."""
        return None

    @property
    def plain(self) -> bool:
        """Whether it is the cross-entropy, without options."""
        return False

    def require_classes(self, num_classes: int) -> None:
        """Raise ``ValueError`` where a data set's number of classes is not the loss's."""


def sample_weights(loss: Callable[..., Tensor], labels: Tensor, index: Tensor) -> np.ndarray | None:
    """Return the weights by which samples count in a mean of their losses, in float64.

    Args:
        loss: A ``Loss``, or a function such as ``torch.nn.functional.cross_entropy``.
        labels: [n] of all samples.
        index: [m] numbers of the samples in question.

    Returns:
        [m] weights on the CPU; None where all samples count equally.
    """
    weights = loss.weigh(labels) if isinstance(loss, Loss) else None
    return None if weights is None else weights[index].cpu().numpy()
