"""A mixture of a common and a personal adapter whose shares depend on the single image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedsdg.models.cohort import CohortModel
from fedsdg.models.interface import HasLosses
from fedsdg.models.parameters import Layout, ParameterSpec, offsets
from fedsdg.models.portable import Portable

_ANCHOR = "anchor"


class InstanceMixture:
    """FedDPA's weighting by instance (Yang et al. 2024), for inference alone.

    For image i of client k an adapted layer gives W x + (1 − α_i) s B_u A_u x + α_i s B_v A_v x
    with α_i = λ · mean_j cos(f(x_i), f(z_kj)) over some of k's training images z_kj. f is the class
    token with v alone in place, so what a client knows of its own images lasts as long as its v.
    λ is the fixed gate of ``inner``, which is also what training mixes with.

    The layout is that of ``inner`` and, last in the private row, ``anchor`` [dim], the mean of the
    f(z_kj) / ‖f(z_kj)‖. It is 0 between evaluations; ``with_anchors`` fills it in.
    """

    def __init__(self, inner: CohortModel) -> None:
        share = inner.config.gate_fixed
        if inner.config.composition != "mixture" or share is None:
            raise ValueError(
                "weighting by instance needs two adapters that are mixed with a fixed share; set "
                "composition to 'mixture' and gate_fixed to λ"
            )
        self.inner = inner
        self.share = share
        if isinstance(inner, HasLosses):
            self.losses = inner.losses
        anchor = ParameterSpec(_ANCHOR, (inner.backbone.architecture.dim,), "measured", False)
        self.layout = Layout(inner.layout.communicated, (*inner.layout.private, anchor))

    def to(self, *place: Any) -> InstanceMixture:
        """The same model computing in another type or place; see ``CohortModel.to``."""
        return InstanceMixture(self.inner.to(*place))

    def branch_norms(self, parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """As of the fixed mixture."""
        return self.inner.branch_norms(parameters)

    def logits(
        self,
        images: Tensor,
        counts: Sequence[int],
        parameters: Mapping[str, Tensor],
        private: bool = True,
    ) -> Tensor:
        """Scores of the fixed mixture, for training."""
        return self.inner.logits(images, counts, parameters, private)

    def effective_weights(
        self, parameters: Mapping[str, Tensor], private: bool = True
    ) -> Mapping[str, Any]:
        """Both kinds of weights and the anchors; those with u alone without ``private``."""
        if not private:
            return self.inner.effective_weights(parameters, private=False)
        return {"branches": self.inner.branches(parameters), _ANCHOR: parameters[_ANCHOR]}

    def forward(self, images: Tensor, counts: Sequence[int], weights: Mapping[str, Any]) -> Tensor:
        """Scores [B, classes], every image with its own α_i."""
        if _ANCHOR not in weights:
            return self.inner.forward(images, counts, weights)
        if not len(images):
            return weights[_ANCHOR].new_zeros(0, self.inner.num_classes)
        branches = weights["branches"]
        clients = torch.repeat_interleave(
            torch.tensor(counts, device=images.device), output_size=len(images)
        )
        features = normalize(self.inner.features(images, counts, branches))
        shares = self.share * (features * weights[_ANCHOR][clients]).sum(1)
        return self.inner.blended(images, counts, branches, shares)

    def portable(self, parameters: Mapping[str, Tensor], private: bool = True) -> Portable:
        """See `ClientModel`: that of the common adapter; a client's shares differ by image."""
        if private:
            raise ValueError(
                "its clients mix two adapters anew for every image, which is neither one adapter "
                "nor one set of weights; what can be had is the model that they share, and with "
                "mixture: fixed those of clients as well"
            )
        return self.inner.portable(parameters, private=False)

    @torch.no_grad()
    def with_anchors(self, private: Tensor, images: Tensor, counts: Sequence[int]) -> Tensor:
        """Private rows [M, d_p] with their anchors, from ``counts[k]`` ≥ 1 images of client k."""
        filled = private.clone()
        columns = offsets(self.layout.private)
        named = {
            spec.name: private[:, columns[spec.name]].view(-1, *spec.shape)
            for spec in self.layout.private
        }
        # The communicated factors have no part in v alone, but the weights name them.
        named |= {
            spec.name: private.new_zeros(len(private), *spec.shape)
            for spec in self.layout.communicated
        }
        features = normalize(self.inner.features(images, counts, self.inner.branches(named)))
        clients = torch.repeat_interleave(torch.tensor(counts, device=images.device))
        sums = torch.zeros_like(filled[:, columns[_ANCHOR]]).index_add_(0, clients, features)
        filled[:, columns[_ANCHOR]] = sums / sums.new_tensor(counts)[:, None]
        return filled
