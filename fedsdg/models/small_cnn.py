"""A small convolutional network all of whose parameters are trained: `trainable: full`.

McMahan et al. (2017) trained a CNN on MNIST: two 5 x 5 convolutions of 32 and 64 channels, each
followed by 2 x 2 max-pooling, a hidden layer of 512 and the scores. This is the same network in
small (16, 32, 64), so that it also fits images of 8 x 8. With C channels, side H and K classes:

    conv1   16 (25 C + 1)        ReLU, max-pooling: 16 x H/2 x H/2
    conv2   32 (25 · 16 + 1)     ReLU, max-pooling: 32 x H/4 x H/4
    hidden  64 (32 ⌊H/4⌋² + 1)   ReLU
    head    K (64 + 1)

parameters: 22,154 on digits (8 x 8 grey, as many as the adapters and head of the default
experiment), 114,314 on MNIST (28 x 28 grey), 151,684 on CIFAR-100 (32 x 32 colour).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import conv2d, linear, max_pool2d

from fedsdg.models.architecture import CnnArchitecture
from fedsdg.models.client_model import ClientModel, require_counts
from fedsdg.models.parameters import Layout, ParameterSpec
from fedsdg.models.portable import HEAD, Portable
from fedsdg.models.products import equal_runs

CHANNELS = (16, 32)
HIDDEN = 64
KERNEL = 5


def cnn_layout(
    architecture: CnnArchitecture,
    num_classes: int,
    *,
    local: bool = False,
    head: Literal["shared", "private", "frozen"] = "shared",
    own: Sequence[str] = (),
) -> Layout:
    """Return names, shapes and order of the parameters.

    All are in the group "shared", except a frozen head.

    Args:
        architecture: of the images.
        num_classes: outputs of the head.
        local: every parameter is private.
        head: a private or frozen head moves to the private row under its name.
        own: patterns of further names that move there; see `Layout.with_own`.

    Returns:
        The layout.

    Raises:
        ValueError: there are fewer than two classes.
    """
    if num_classes < 2:
        raise ValueError(f"a task needs at least 2 classes, got {num_classes}")
    first, second = CHANNELS
    pooled = architecture.image_size // 4
    shapes = {
        "conv1": (first, architecture.channels, KERNEL, KERNEL),
        "conv2": (second, first, KERNEL, KERNEL),
        "hidden": (HIDDEN, second * pooled * pooled),
        "head": (num_classes, HIDDEN),
    }
    body = []
    for layer, shape in shapes.items():
        body.append(ParameterSpec(f"{layer}.weight", shape, "shared"))
        body.append(ParameterSpec(f"{layer}.bias", shape[:1], "shared"))
    if local:
        return Layout((), tuple(body))
    if head == "frozen":
        return Layout(tuple(body[:-2]), tuple(spec.frozen() for spec in body[-2:])).with_own(*own)
    return Layout(tuple(body), ()).with_own(*own, *(["head.*"] if head == "private" else []))


class SmallCnn(ClientModel):
    """The network with a client axis.

    A CPU computes client by client. On a GPU torch.func.vmap gives one client's network the client
    axis, one launch for all clients. No batch is filled up, and a client is computed as if there
    were no others.

    Args:
        architecture: of the images.
        num_classes: outputs of the head.
        **options: see `cnn_layout`.
    """

    def __init__(self, architecture: CnnArchitecture, num_classes: int, **options: Any) -> None:
        self.all_specs = cnn_layout(architecture, num_classes).communicated
        self.layout = cnn_layout(architecture, num_classes, **options)

    def initial_values(self, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Draw weights and biases as torch's layers start: uniform(±1/√fan_in)."""
        values: dict[str, Tensor] = {}
        bound = 0.0
        for spec in self.all_specs:  # in one order, whatever is private
            if spec.name.endswith(".weight"):  # the bias follows, with the same bound
                bound = 1.0 / math.sqrt(math.prod(spec.shape[1:]))
            drawn = generator.uniform(-bound, bound, spec.size)
            values[spec.name] = torch.from_numpy(drawn).to(torch.float32)
        rows = (self.layout.communicated, self.layout.private)
        shared, private = ([values[spec.name] for spec in specs] for specs in rows)
        return torch.cat([torch.zeros(0), *shared]), torch.cat([torch.zeros(0), *private])

    def effective_weights(
        self, parameters: Mapping[str, Tensor], private: bool = True
    ) -> Mapping[str, Tensor]:
        """Return the parameters themselves; there is no branch beside them to be left out."""
        return parameters

    def forward(
        self, images: Tensor, counts: Sequence[int], weights: Mapping[str, Tensor]
    ) -> Tensor:
        """Return scores [B, classes]; see `ClientModel`."""
        bias = weights[HEAD[1]]
        require_counts(counts, images, clients=len(bias))
        images = images.to(bias.dtype)
        if bias.device.type == "cpu":
            return _client_by_client(images, counts, weights)
        return _by_vmap(images, counts, weights)

    def portable(self, parameters: Mapping[str, Tensor], private: bool = True) -> Portable:
        """Return the weights; without the head where clients keep it, or a part of it."""
        names = [spec.name for spec in (*self.layout.communicated, *self.layout.private)]
        wanted = [name for name in names if name not in HEAD or {*HEAD} <= parameters.keys()]
        if not {*wanted} <= parameters.keys():
            raise ValueError(
                "clients keep layers, and the rest is no model; export those of clients"
            )
        return Portable({}, {name: parameters[name][0] for name in wanted})


def cnn_scores(weights: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """Return one network's scores.

    Args:
        weights: by name, of one client.
        images: [B, C, H, W].

    Returns:
        [B, classes].
    """
    x = images
    for layer in ("conv1", "conv2"):
        x = conv2d(x, weights[f"{layer}.weight"], weights[f"{layer}.bias"], padding=KERNEL // 2)
        x = max_pool2d(x, 2).relu()  # the other order is the same with four times the ReLUs
    x = linear(x.flatten(1), weights["hidden.weight"], weights["hidden.bias"]).relu()
    return linear(x, weights[HEAD[0]], weights[HEAD[1]])


def _client_by_client(
    images: Tensor, counts: Sequence[int], weights: Mapping[str, Tensor]
) -> Tensor:
    # Unbound at once: each client picked would have a matrix of zeros in the backward pass.
    unbound = {name: weight.unbind() for name, weight in weights.items()}
    batches = images.split(list(counts))
    clients = [{name: unbound[name][k] for name in weights} for k in range(len(batches))]
    return torch.cat([cnn_scores(*pair) for pair in zip(clients, batches, strict=True)])


def _by_vmap(images: Tensor, counts: Sequence[int], weights: Mapping[str, Tensor]) -> Tensor:
    """Map `cnn_scores` over each run of clients with equally many images."""
    runs = list(equal_runs(counts))
    lengths = [run.length for run in runs]
    # Split at once: each slice would allocate a matrix of zeros in the backward pass.
    pieces = {name: weight.split(lengths) for name, weight in weights.items()}
    bias = weights[HEAD[1]]
    scores = [bias.new_zeros(0, bias.shape[1])]
    for number, run in enumerate(runs):
        if run.each:
            clients = {name: piece[number] for name, piece in pieces.items()}
            batches = images[run.rows].unflatten(0, (run.length, run.each))
            scores.append(vmap(cnn_scores)(clients, batches).flatten(0, 1))
    return torch.cat(scores)
