"""What each client's update is worth to the model: the game whose players are clients.

The utility of a coalition S is the accuracy, on validation data, of θ + the uniform mean of the
updates of S; that of nobody is the accuracy of θ. All 2^n models are candidates on the client
axis, many to a pass.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedsdg.federation.contribution import (
    Utility,
    coalitions,
    shapley_values,
    truncated_monte_carlo,
)
from fedsdg.federation.evaluation import CHUNK, CLIENTS_PER_PASS
from fedsdg.federation.local_work import Samples
from fedsdg.files.columns import Column
from fedsdg.models.interface import ClientModel
from fedsdg.models.parameters import Layout, views

#: What it adds to the records.
columns = (
    Column("clients", "shapley", "float64", "exact Shapley value of its update"),
    Column("clients", "shapley_estimate", "float64", "the same, estimated from random orders"),
)

_NO_VALIDATION = (
    "Shapley values need validation data, and no client has any: let the partition keep some for "
    "validation"
)

#: Of the estimate: orders drawn, and how near to the value of all (in accuracy) an order ends,
#: half of the clients having joined: in a late round all are worth hardly more than nobody.
PERMUTATIONS, TOLERANCE = 50, 0.01


def coalition_models(theta: Tensor, updates: Tensor, masks: np.ndarray) -> Tensor:
    """θ + mean of the updates of each coalition: [B, d] for masks [B, n]; nobody's model is θ.

    ``theta`` is [d] and ``updates`` [n, d]. The means are one product in float64, so that no
    coalition depends on those before it; the result has the type of θ.
    """
    members = torch.from_numpy(masks.astype(np.float64)).to(theta.device)
    members /= members.sum(dim=1, keepdim=True).clamp(min=1.0)
    return (theta.double() + members @ updates.double()).to(theta.dtype)


@torch.no_grad()
def shared_accuracies(
    model: ClientModel,
    layout: Layout,
    samples: Samples,
    index: np.ndarray,
    models: Tensor,
    private: Tensor,
) -> np.ndarray:
    """Accuracy of each of several shared models [B, d] alone on the samples ``index``: [B].

    ``private`` [d_p] only completes the names; its branch is left out.
    """
    count = len(models)
    parameters = {
        **views(models, layout.communicated),
        **views(private.expand(count, -1), layout.private),
    }
    weights = model.effective_weights(parameters, private=False)
    right = torch.zeros(count, dtype=torch.int64, device=samples.labels.device)
    for part in torch.from_numpy(index).to(samples.labels.device).split(max(CHUNK // count, 1)):
        images = samples.images[part].repeat(count, *[1] * (samples.images.dim() - 1))
        logits = model.forward(images, [len(part)] * count, weights)
        right += (logits.argmax(1).view(count, -1) == samples.labels[part]).sum(dim=1)
    return right.cpu().numpy() / len(index)


def coalition_accuracies(
    model: ClientModel,
    layout: Layout,
    samples: Samples,
    index: np.ndarray,
    theta: Tensor,
    updates: Tensor,
    private: Tensor,
) -> np.ndarray:
    """The utility of all 2^n coalitions of n clients, in the order of ``coalitions``.

    ``index`` are the samples of the clients' validation shards together.

    Raises:
        ValueError: more clients than exact values are enumerated for, or no validation data.
    """
    if not len(index):
        raise ValueError(_NO_VALIDATION)
    values = [
        shared_accuracies(model, layout, samples, index, candidates, private)
        for candidates in _groups(theta, updates)
    ]
    return np.concatenate(values)


def _groups(theta: Tensor, updates: Tensor) -> Iterator[Tensor]:
    masks = coalitions(len(updates))
    for begin in range(0, len(masks), CLIENTS_PER_PASS):
        yield coalition_models(theta, updates, masks[begin : begin + CLIENTS_PER_PASS])


def client_contributions(
    model: ClientModel,
    layout: Layout,
    samples: Samples,
    index: np.ndarray,
    theta: Tensor,
    updates: Tensor,
    private: Tensor,
    generator: np.random.Generator,
    *,
    exactly: bool = True,
) -> dict[str, np.ndarray]:
    """Shapley values [n] of the clients whose updates [n, d] were made from θ [d].

    ``shapley``, the exact ones, where asked for: they sum to the accuracy of the uniform mean of
    all less that of θ. ``shapley_estimate``: from ``PERMUTATIONS`` orders, cut short within
    ``TOLERANCE``. See ``coalition_accuracies`` and ``truncated_monte_carlo``.
    """
    game = (model, layout, samples, index, theta, updates, private)
    found, utility = {}, coalition_utility(*game)
    if exactly:
        values = coalition_accuracies(*game)
        found["shapley"] = shapley_values(values)
        utility = _known(values)
    n = len(updates)
    estimate = truncated_monte_carlo(
        n, utility, PERMUTATIONS, generator, TOLERANCE, at_least=(n + 1) // 2
    )
    return {**found, "shapley_estimate": estimate.values}


def _known(values: np.ndarray) -> Utility:
    """The utility of a coalition, looked up among all of them in the order of ``coalitions``."""
    bits = 1 << np.arange(values.size.bit_length() - 1)
    return lambda mask: float(values[bits @ mask])


def coalition_utility(
    model: ClientModel,
    layout: Layout,
    samples: Samples,
    index: np.ndarray,
    theta: Tensor,
    updates: Tensor,
    private: Tensor,
) -> Utility:
    """The same game one coalition at a time: for estimates where enumeration is out of reach."""

    if not len(index):
        raise ValueError(_NO_VALIDATION)

    def accuracy(mask: np.ndarray) -> float:
        candidate = coalition_models(theta, updates, mask[None])
        return float(shared_accuracies(model, layout, samples, index, candidate, private)[0])

    return accuracy
