"""A private copy of the whole model, mixed with the common one number by number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsdg.models.client_model import ClientModel
from fedsdg.models.parameters import Layout
from fedsdg.models.portable import Portable

_COPY = "_own"


class MixedModel(ClientModel):
    """A client's model is a v + (1 − a) w: w is communicated, v a whole model of its own.

    It serves Ditto (a = 1), APFL (Deng et al. 2020) and the running mix. The mixture is taken of
    the parameters: of adapters on the factors A and B, not on their product. The gradient of a loss
    by v is a times the gradient by the mixture. Without `private` every client uses w.

    The layout has every parameter a second time in the private row, its name followed by ``_own``,
    in the group "own", which learns at η_g as the common one does.

    Args:
        inner: a model all of whose parameters are communicated.
        weight: a in [0, 1].

    Raises:
        ValueError: `inner` has private parameters, or a is outside [0, 1].
    """

    def __init__(self, inner: ClientModel, weight: float) -> None:
        if inner.layout.private:
            raise ValueError("a mixed model needs one all of whose parameters are communicated")
        if not 0 <= weight <= 1:
            raise ValueError(f"weight {weight} must lie in [0, 1]")
        self.inner = inner
        self.weight = weight
        self.bytes_of_a_prefix = inner.bytes_of_a_prefix
        shared = inner.layout.communicated
        copies = tuple(replace(spec, name=spec.name + _COPY, group="own") for spec in shared)
        self.layout = Layout(shared, copies)

    def initial_values(self, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return the first values of the inner model twice."""
        theta, _ = self.inner.initial_values(generator)
        return theta, theta.clone()

    def prefixes(self, images: Tensor) -> Tensor:
        """Return those of the inner model."""
        return self.inner.prefixes(images)

    def effective_weights(
        self, parameters: Mapping[str, Tensor], private: bool = True
    ) -> Mapping[str, Any]:
        """Return the weights of the mixture; see `ClientModel`."""
        return self.inner.effective_weights(self._mixed(parameters, private))

    def forward(self, images: Tensor, counts: Sequence[int], weights: Mapping[str, Any]) -> Tensor:
        """Return scores [B, classes]; see `ClientModel`."""
        return self.inner.forward(images, counts, weights)

    def losses(
        self,
        images: Tensor,
        labels: Tensor,
        divisors: Tensor,
        counts: Sequence[int],
        weights: Mapping[str, Any],
        loss: Callable[..., Tensor] = cross_entropy,
    ) -> Tensor:
        """Return losses over divisors [B]; see `ClientModel`."""
        return self.inner.losses(images, labels, divisors, counts, weights, loss)

    def portable(self, parameters: Mapping[str, Tensor], private: bool = True) -> Portable:
        """Return the mixture as a model of the inner kind."""
        return self.inner.portable(self._mixed(parameters, private))

    def _mixed(self, parameters: Mapping[str, Tensor], private: bool) -> dict[str, Tensor]:
        common = {name: x for name, x in parameters.items() if not name.endswith(_COPY)}
        if not private:
            return common
        return {
            name: torch.lerp(value, parameters[name + _COPY], self.weight)
            for name, value in common.items()
        }
