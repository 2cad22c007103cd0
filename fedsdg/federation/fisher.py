"""How sensitive each parameter is on a client's own data: the diagonal of the Fisher information.

FedCurv (Shoham et al. 2019) needs the mean of squared *per-sample* gradients; the square of a
batch's gradient is another thing. With clients as an axis they cost no second mechanism: every
sample is a client of its own for the length of one backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsdg.federation.clients import LocalResult
from fedsdg.federation.local_work import Model, Samples, shares_of
from fedsdg.federation.losses.loss import sample_weights
from fedsdg.federation.passes import budget, bytes_of_a_client
from fedsdg.federation.probes import Measured, Probe, Scene
from fedsdg.models.parameters import Layout, leaves
from fedsdg.parts import part

#: Samples in one backward pass where memory allows more; longer ones are no faster.
MOST = 128


def diagonal_fisher(
    model: Model,
    layout: Layout,
    samples: Samples,
    shards: Sequence[np.ndarray],
    theta: Tensor,
    private: Tensor,
    loss: Callable[..., Tensor],
) -> Tensor:
    """I_k = (1/n_k) Σ_i (∇_θ ℓ(θ_k; x_i))², entry by entry: [M, d], of the communicated row.

    ``shards[k]``: client k's sample indices, at least one; ``theta`` [M, d], ``private`` [M, d_p];
    ``loss(logits, labels, reduction="none")`` per sample. A sample that the loss weighs with w
    counts as w samples: I_k = Σ_i w_i (∇ℓ_i)² / Σ_i w_i. Added up client by client in the order
    of its samples, so the result is the same from run to run.
    """
    fisher = torch.zeros_like(theta)
    if not layout.d:
        return fisher
    for k, shard in enumerate(shards):
        if not len(shard):
            raise ValueError(
                f"the client in row {k} has no training sample to take gradients of; "
                "give every client a sample"
            )
    device = samples.labels.device
    index = torch.from_numpy(np.concatenate(shards)).to(device)
    weights = sample_weights(loss, samples.labels, index)
    owner = np.repeat(np.arange(len(shards)), [len(shard) for shard in shards])
    need = bytes_of_a_client(model, layout, samples, 1, theta[:1], private[:1])
    size = min(MOST, max(1, budget(device) // need))
    for begin in range(0, len(index), size):
        part = index[begin : begin + size]
        own = owner[begin : begin + size]
        rows = torch.from_numpy(own).to(theta.device)
        values = theta[rows]
        gradients = torch.zeros_like(values)
        parameters = {
            **leaves(values, gradients, layout.communicated),
            **leaves(private[rows], None, layout.private),
        }
        # ℓ comes multiplied by w, its square should be so once.
        parts = np.ones(len(part)) if weights is None else weights[begin : begin + size]
        divisors = torch.from_numpy(parts).sqrt().to(device)
        images, labels = samples.images[part], samples.labels[part]
        # Every row meets one sample, so the gradient of the sum is the gradient of each.
        each = shares_of(model, loss, images, labels, divisors, [1] * len(part), parameters)
        each.sum().backward()
        gradients.square_()
        ends = np.flatnonzero(np.diff(own, append=-1)) + 1
        starts = [0, *ends[:-1].tolist()]
        for first, end in zip(starts, ends.tolist(), strict=True):
            fisher[own[first]] += gradients[first:end].sum(0)
    counts = np.bincount(owner, weights)
    return fisher / torch.from_numpy(counts).to(theta)[:, None]


@part
class FisherInformation(Probe):
    """FedCurv's uploads: ``fisher`` I_k [M, d] at the trained θ_k, and ``fisher_theta`` I_k θ_k.

    Each client keeps both, to take them off the sums that it gets in the next round. One pass over
    its training samples, or over as many batches as it has time for.
    """

    gradient_epochs: ClassVar[int] = 1

    def after(self, scene: Scene, local: LocalResult) -> Measured:
        own = [scene.for_gradients(k) for k in range(len(scene.clients))]
        fisher = diagonal_fisher(
            scene.model, scene.layout, scene.samples, own, local.theta, local.private, scene.loss
        )
        return Measured(vectors={"fisher": fisher, "fisher_theta": fisher * local.theta})
