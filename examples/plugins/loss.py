"""A loss, the Brier score, with one value per sample.

Use it with ``training: {loss: brier}``.
"""

import torch

from fedsdg.federation.losses import Loss


class Brier(Loss, name="brier"):
    """sum_c (p_c - [c = y])^2 (Brier 1950)."""

    def __call__(self, logits, labels, reduction="none"):
        """Return the loss of each sample."""
        truth = torch.nn.functional.one_hot(labels, logits.shape[1])
        return (logits.softmax(1) - truth).square().sum(1)
