"""The interface of a model whose clients are an axis of every tensor.

Images stand client by client, `counts[k]` of them belong to client k, and each goes through the
parameters of its own client. Parameters are tensors [M, …] under the names of `block_views`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsdg.models.parameters import Layout
from fedsdg.models.portable import Portable


class ClientModel:
    """Base class. A model implements `effective_weights` and `forward`."""

    layout: Layout
    "names, shapes and order of the parameters"
    bytes_of_a_prefix = 0
    "memory of one image's prefix, in bytes; 0 where images have none (see `prefixes`)"

    def initial_values(self, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Draw first values of the communicated row [d] and the private row [d_private].

        Rows are float32 on the CPU. Private heads and B leave the communicated row as it is.
        """
        raise NotImplementedError

    def prefixes(self, images: Tensor) -> Tensor:
        """Return the part of a pass over images [n, …] that no training changes.

        It can stand for the images in every call and is worth keeping. By default it is the images.
        """
        return images

    def effective_weights(
        self, parameters: Mapping[str, Tensor], private: bool = True
    ) -> Mapping[str, Any]:
        """Return every client's weights for many calls of `forward`.

        Args:
            parameters: tensors [M, …].
            private: False leaves the private parameters beside a common model out: θ_g alone.

        Returns:
            Weights in a form that `forward` knows.
        """
        raise NotImplementedError

    def forward(self, images: Tensor, counts: Sequence[int], weights: Mapping[str, Any]) -> Tensor:
        """Return scores [B, classes] from the result of `effective_weights`.

        Args:
            images: [B, …], or their prefixes.
            counts: images of each client, 0 is allowed, Σ = B.
            weights: of M clients.

        Returns:
            [B, classes], differentiable in the parameters of the weights.

        Raises:
            ValueError: `counts` fits neither the images nor the weights.
        """
        raise NotImplementedError

    def losses(
        self,
        images: Tensor,
        labels: Tensor,
        divisors: Tensor,
        counts: Sequence[int],
        weights: Mapping[str, Any],
        loss: Callable[..., Tensor] = cross_entropy,
    ) -> Tensor:
        """Return the loss of every image over its divisor [B], for the gradient of their sum.

        Args:
            images: [B, …], or their prefixes.
            labels: int64 [B].
            divisors: [B], infinite where an image does not count.
            counts: images of each client, Σ = B.
            weights: of M clients, as `effective_weights` returns them.
            loss: a function of scores, labels and ``reduction="none"``.

        Returns:
            [B], differentiable in the parameters of the weights.
        """
        each = loss(self.forward(images, counts, weights), labels, reduction="none")
        return each / divisors.to(each.dtype)

    def logits(
        self,
        images: Tensor,
        counts: Sequence[int],
        parameters: Mapping[str, Tensor],
        private: bool = True,
    ) -> Tensor:
        """Return scores from parameters in one call.

        Args:
            images: [B, …], or their prefixes.
            counts: images of each client, Σ = B.
            parameters: tensors [M, …].
            private: as in `effective_weights`.

        Returns:
            [B, classes], differentiable in the parameters.
        """
        return self.forward(images, counts, self.effective_weights(parameters, private))

    def portable(self, parameters: Mapping[str, Tensor], private: bool = True) -> Portable:
        """Return one client's model in terms of other libraries.

        Args:
            parameters: tensors [1, …]; for a model that all clients share, the communicated and the
                frozen ones are enough.
            private: as in `effective_weights`.

        Returns:
            Adapters and a head, or plain weights.

        Raises:
            ValueError: the parameters given are no model; the sentence says which one there is.
        """
        raise NotImplementedError


def require_counts(counts: Sequence[int], images: Tensor, clients: int) -> None:
    """Check the numbers of images of the clients.

    Args:
        counts: images of each client.
        images: [B, …].
        clients: number of clients.

    Raises:
        ValueError: there is not one count per client, or they do not sum to the images.
    """
    if len(counts) != clients or sum(counts) != len(images) or min(counts, default=0) < 0:
        raise ValueError(
            f"counts {list(counts)} must be {clients} non-negative numbers that sum to the "
            f"{len(images)} images"
        )
