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
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import conv2d, linear, max_pool2d

from fedsdg.models.parameters import Layout, ParameterSpec, offsets
from fedsdg.models.portable import Portable
from fedsdg.models.products import client_linear, equal_runs

CHANNELS = (16, 32)
HIDDEN = 64
KERNEL = 5


@dataclass(frozen=True)
class CnnArchitecture:
    """The images that the network takes: square, `image_size` pixels a side, 1 or 3 `channels`.

    Pixel values in [0, 1] are fed as (x - 0.5) / 0.5: a fixed map, so that nothing is learned
    from anybody's images beforehand.

    Raises:
        ValueError: images too small for two poolings.
    """

    image_size: int
    channels: int

    def __post_init__(self) -> None:
        if self.image_size < 4 or self.channels < 1:
            raise ValueError(
                f"the small CNN halves its images twice and needs at least 4 x 4 pixels and one "
                f"channel, got {self.image_size} x {self.image_size} and {self.channels}"
            )

    @property
    def mean(self) -> tuple[float, ...]:
        """Subtracted from every channel."""
        return (0.5,) * self.channels

    @property
    def std(self) -> tuple[float, ...]:
        """Every channel is divided by it."""
        return (0.5,) * self.channels


def make_layout(
    architecture: CnnArchitecture,
    num_classes: int,
    *,
    local: bool = False,
    head: Literal["shared", "private", "frozen"] = "shared",
) -> Layout:
    """Names, shapes and order of the parameters, all of the group "shared" but a frozen head.

    A private or frozen `head` moves from the communicated to the private row, and with `local` all
    do; names and order stay as they are.
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
    specs = tuple(
        spec
        for layer, shape in shapes.items()
        for spec in (
            ParameterSpec(f"{layer}.weight", shape, "shared"),
            ParameterSpec(f"{layer}.bias", shape[:1], "shared"),
        )
    )
    if local:
        return Layout((), specs)
    shared = len(specs) - 2 * (head != "shared")  # weight and bias, the last of all
    own = specs[shared:]
    return Layout(specs[:shared], tuple(s.frozen() for s in own) if head == "frozen" else own)


def initial_values(layout: Layout, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    """First values of the communicated [d] and the private row [d_private], float32.

    As torch's layers start: weights and biases uniform(±1/√fan_in), fan_in the inputs of one
    output of the layer (Kaiming's with a = √5). The communicated row is drawn first, so that
    every method starts from the same values, whatever it keeps private.
    """
    return _initial_row(layout.communicated, generator), _initial_row(layout.private, generator)


def _initial_row(specs: tuple[ParameterSpec, ...], generator: np.random.Generator) -> Tensor:
    row = torch.zeros(sum(spec.size for spec in specs), dtype=torch.float32)
    columns = offsets(specs)
    bound = 0.0
    for spec in specs:
        if spec.name.endswith(".weight"):  # its bias follows, with the same bound
            bound = 1.0 / math.sqrt(math.prod(spec.shape[1:]))
        values = generator.uniform(-bound, bound, spec.size)
        row[columns[spec.name]] = torch.as_tensor(values, dtype=torch.float32)
    return row


class SmallCnn:
    """The network for cohorts of any size, with the interface of `CohortModel`.

    On a CPU convolutions run client by client and dense layers as batched products. On a GPU
    torch.func.vmap gives one client's network the client axis, a launch for all clients. No batch
    is padded, and a client that stands alone is computed as if there were no others.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def effective_weights(
        self, parameters: Mapping[str, Tensor], private: bool = True
    ) -> dict[str, Tensor]:
        """Every client's own weights, by name: the parameters themselves.

        There is no branch beside them, so `private` changes nothing.
        """
        specs = (*self.layout.communicated, *self.layout.private)
        return {spec.name: parameters[spec.name] for spec in specs}

    def portable(self, parameters: Mapping[str, Tensor], private: bool = True) -> Portable:
        """See `ClientModel`: the weights themselves; without the head where clients keep it."""
        specs = (*self.layout.communicated, *self.layout.private)
        weights = {s.name: parameters[s.name][0] for s in specs if s.name in parameters}
        if not weights:
            raise ValueError(
                "clients keep everything to themselves, so that what they share is no model; "
                "export those of clients"
            )
        return Portable({}, weights)

    def logits(
        self,
        images: Tensor,
        counts: Sequence[int],
        parameters: Mapping[str, Tensor],
        private: bool = True,
    ) -> Tensor:
        """Class scores of every image under its own client's parameters.

        Args:
            images: [B, C, H, W], client by client.
            counts: M numbers; `counts[k]` rows belong to client k, 0 is allowed, Σ = B.
            parameters: tensors [M, *shape] by the layout's names, as `views` or `leaves` give them.
            private: of no effect.

        Returns:
            [B, classes].

        Raises:
            ValueError: `counts` fits neither the images nor the parameters.
        """
        return self.forward(images, counts, self.effective_weights(parameters, private))

    def forward(
        self, images: Tensor, counts: Sequence[int], weights: Mapping[str, Tensor]
    ) -> Tensor:
        """`logits` from what `effective_weights` has already made."""
        bias = weights["head.bias"]
        if len(counts) != len(bias) or sum(counts) != len(images) or min(counts, default=0) < 0:
            raise ValueError(
                f"counts {list(counts)} must be {len(bias)} non-negative numbers that sum to the "
                f"{len(images)} images"
            )
        images = images.to(bias.dtype)
        if bias.device.type == "cpu":
            return client_by_client(images, counts, weights)
        return by_vmap(images, counts, weights)


def client_by_client(
    images: Tensor, counts: Sequence[int], weights: Mapping[str, Tensor]
) -> Tensor:
    """Scores [B, classes]: convolutions in a loop over clients, dense layers as one product."""
    x, sizes = images, list(counts)
    for layer in ("conv1", "conv2"):
        kernels, biases = weights[f"{layer}.weight"], weights[f"{layer}.bias"]
        # Unbound at once: picked one by one, each has a matrix of zeros in the backward pass.
        each = zip(x.split(sizes), kernels.unbind(), biases.unbind(), strict=True)
        maps = [conv2d(own, kernel, bias, padding=KERNEL // 2) for own, kernel, bias in each]
        x = max_pool2d(torch.cat(maps), 2).relu()
    x = x.flatten(1)
    x = client_linear(x, weights["hidden.weight"], weights["hidden.bias"], counts).relu()
    return client_linear(x, weights["head.weight"], weights["head.bias"], counts)


def by_vmap(images: Tensor, counts: Sequence[int], weights: Mapping[str, Tensor]) -> Tensor:
    """Scores [B, classes] by torch.func.vmap, for each run of clients with equally many images."""
    runs = list(equal_runs(counts))
    lengths = [clients.stop - clients.start for clients, _, _ in runs]
    # Split at once: slicing run by run would make a zero matrix a run in the backward pass.
    pieces = {name: weight.split(lengths) for name, weight in weights.items()}
    bias = weights["head.bias"]
    scores = [bias.new_zeros(0, bias.shape[1])]
    for number, (_, rows, count) in enumerate(runs):
        if count:
            own = {name: piece[number] for name, piece in pieces.items()}
            batches = images[rows].unflatten(0, (lengths[number], count))
            scores.append(vmap(scores_of_one)(own, batches).flatten(0, 1))
    return torch.cat(scores)


def scores_of_one(weights: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """One client's scores [B, classes] of its images [B, C, H, W]."""
    x = images
    for layer in ("conv1", "conv2"):
        x = conv2d(x, weights[f"{layer}.weight"], weights[f"{layer}.bias"], padding=KERNEL // 2)
        x = max_pool2d(x, 2).relu()  # the other way round is the same and four times the ReLUs
    x = linear(x.flatten(1), weights["hidden.weight"], weights["hidden.bias"]).relu()
    return linear(x, weights["head.weight"], weights["head.bias"])
