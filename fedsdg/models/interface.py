"""What the federation asks of a model whose clients are an axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from fedsdg.models.parameters import Layout
from fedsdg.models.portable import Portable


class ScoringModel(Protocol):
    """What an evaluation asks of a model.

    Images stand client by client, `counts[k]` of them of client k; parameters are tensors
    [M, *shape] by the layout's names, or as `leaves` names them; scores are [B, classes].
    """

    def effective_weights(
        self, parameters: Mapping[str, Tensor], private: bool = True
    ) -> Mapping[str, Any]:
        """Every client's own weights, made once for many calls of `forward`."""

    def forward(self, images: Tensor, counts: Sequence[int], weights: Mapping[str, Any]) -> Tensor:
        """Scores from what `effective_weights` has made."""


class ClientModel(ScoringModel, Protocol):
    """`CohortModel` (adapters of a frozen backbone) and `SmallCnn` (all parameters) are such."""

    layout: Layout

    def logits(
        self,
        images: Tensor,
        counts: Sequence[int],
        parameters: Mapping[str, Tensor],
        private: bool = True,
    ) -> Tensor:
        """Scores from the parameters, differentiable in them."""

    def portable(self, parameters: Mapping[str, Tensor], private: bool = True) -> Portable:
        """One client's model as other libraries can have it.

        ``parameters`` are tensors [1, *shape]; of what all share those of the communicated row, and
        what is frozen, are enough. ``private`` as everywhere. Raises ``ValueError``, with what can
        be had instead, where the model cannot be put in such terms.
        """


@runtime_checkable
class HasLosses(Protocol):
    """A model that computes losses and their gradient in one pass, as `CompiledModel` does.

    It takes parameters by kind (see ``leaves``). Mixtures have ``losses`` where the model inside
    them has.
    """

    def losses(
        self,
        images: Tensor,
        labels: Tensor,
        divisors: Tensor,
        counts: Sequence[int],
        parameters: Mapping[str, Tensor],
        loss: Callable[..., Tensor],
        private: bool = True,
    ) -> Tensor:
        """The loss of every image over its divisor, [B], for the gradient of their sum."""
