"""Models of which every client has one of its own, mixed with the common one number by number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedsdg.models.interface import ClientModel, HasLosses
from fedsdg.models.parameters import Layout
from fedsdg.models.portable import Portable

_END = "_own"


class MixedModel:
    """A client's model is v̂ = a v + (1 − a) w: w is communicated, v a whole model of its own.

    APFL (Deng et al. 2020), with the mixture taken on the parameters: of adapters on the factors A
    and B, not on their product. The gradient of a loss by v is a times that by v̂.

    Args:
        inner: the model of one kind of parameters, all of them communicated.
        weight: a in [0, 1]. With 0 clients use w, with 1 each its own v.

    The layout is that of ``inner``, with every parameter a second time in the private row, its name
    followed by ``_own`` and its group "own", which learns at η_g as the common one does.

    Raises:
        ValueError: ``inner`` has private parameters already, or a is outside [0, 1].
    """

    def __init__(self, inner: ClientModel, weight: float) -> None:
        if inner.layout.private:
            raise ValueError("a mixed model needs one all of whose parameters are communicated")
        if not 0 <= weight <= 1:
            raise ValueError(f"weight {weight} must lie in [0, 1]")
        self.inner = inner
        self.weight = weight
        shared = inner.layout.communicated
        own = tuple(replace(spec, name=spec.name + _END, group="own") for spec in shared)
        self.layout = Layout(shared, own)
        if isinstance(inner, HasLosses):
            self.losses = self._losses

    def to(self, *place: Any) -> MixedModel:
        """The same model computing in another type or place; see ``CohortModel.to``."""
        inner: Any = self.inner
        return MixedModel(inner.to(*place), self.weight)

    def effective_weights(
        self, parameters: Mapping[str, Tensor], private: bool = True
    ) -> Mapping[str, Any]:
        """Every client's own weights; those of w alone without ``private``."""
        return self.inner.effective_weights(self._mixed(parameters, private))

    def portable(self, parameters: Mapping[str, Tensor], private: bool = True) -> Portable:
        """See `ClientModel`: that of the mixture, which is a model of the kind of ``inner``."""
        return self.inner.portable(self._mixed(parameters, private))

    def forward(self, images: Tensor, counts: Sequence[int], weights: Mapping[str, Any]) -> Tensor:
        """Scores from what ``effective_weights`` has made."""
        return self.inner.forward(images, counts, weights)

    def logits(
        self,
        images: Tensor,
        counts: Sequence[int],
        parameters: Mapping[str, Tensor],
        private: bool = True,
    ) -> Tensor:
        """Scores from the parameters, differentiable in w and v."""
        return self.inner.logits(images, counts, self._mixed(parameters, private))

    def _losses(
        self,
        images: Tensor,
        labels: Tensor,
        divisors: Tensor,
        counts: Sequence[int],
        parameters: Mapping[str, Tensor],
        loss: Callable[..., Tensor],
        private: bool = True,
    ) -> Tensor:
        """See `HasLosses`."""
        inner: Any = self.inner
        losses: Tensor = inner.losses(
            images, labels, divisors, counts, self._mixed(parameters, private), loss
        )
        return losses

    def _mixed(self, parameters: Mapping[str, Tensor], private: bool) -> dict[str, Tensor]:
        common = {name: x for name, x in parameters.items() if not name.endswith(_END)}
        if not private:
            return common
        return {
            name: torch.lerp(value, parameters[name + _END], self.weight)
            for name, value in common.items()
        }
