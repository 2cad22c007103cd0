"""An adapted backbone with a client axis: the images of a cohort in a single sweep.

All images run through the frozen layers together. Only the adapters and the heads, which differ
between clients, are multiplied client by client.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsdg.models.adapter_config import AdapterConfig
from fedsdg.models.adapters import (
    TARGETS,
    adapter_layout,
    adapter_values,
    branch_norms,
    client_heads,
    low_rank_factors,
)
from fedsdg.models.backbones import Backbone
from fedsdg.models.client_model import ClientModel, require_counts
from fedsdg.models.forward import class_tokens, in_bfloat16
from fedsdg.models.parameters import EVERY_BLOCK
from fedsdg.models.portable import HEAD, Portable
from fedsdg.models.products import Factors, client_linear, filled_up


class CohortModel(ClientModel):
    """LoRA adapters and heads of any number of clients beside one frozen backbone.

    Args:
        backbone: its weights stay frozen; they are copied where `dtype` or `device` differ.
        config: of the adapters.
        num_classes: outputs of the head.
        dtype: of the parameters and of the computation.
        device: of both.
        bfloat16: the frozen products, attention and the work per token inside a block are computed
            in bfloat16. Parameters, their gradients, the stream of tokens between blocks, layer
            norms and the head keep `dtype`.
    """

    def __init__(
        self,
        backbone: Backbone,
        config: AdapterConfig,
        num_classes: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        bfloat16: bool = False,
    ) -> None:
        self.backbone = backbone
        self.config = config
        self.num_classes = num_classes
        self.layout = adapter_layout(backbone.architecture, num_classes, config)
        self.dtype = dtype
        self.bfloat16 = bfloat16
        model: Any = backbone.model
        first = next(iter(model.parameters()))
        if first.dtype != dtype or first.device != torch.device(device):
            model = copy.deepcopy(model).to(dtype=dtype, device=device)
        self.model = in_bfloat16(model) if bfloat16 else model

    def initial_values(self, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
        """See `ClientModel` and `adapter_values`."""
        return adapter_values(self.layout, self.config, generator)

    def effective_weights(
        self, parameters: Mapping[str, Tensor], private: bool = True
    ) -> dict[str, Any]:
        """Return adapters (`Factors`) by layer name, and the heads; see `ClientModel`."""
        weights: dict[str, Any] = {}
        for target in TARGETS[self.config.targets]:
            stacked = low_rank_factors(target, parameters, self.config, private)
            # Unbound at once: each block picked would have a matrix of zeros in the backward pass.
            blocks = zip(stacked.a.unbind(1), stacked.b.unbind(1), strict=True)
            for number, factors in enumerate(blocks):
                weights[f"blocks.{number}.{target}"] = Factors(*factors)
        weights |= zip(HEAD, client_heads(parameters, self.config, private), strict=True)
        return weights

    def forward(self, images: Tensor, counts: Sequence[int], weights: Mapping[str, Any]) -> Tensor:
        """Return scores [B, classes]; see `ClientModel`."""
        weight, bias = (weights[name] for name in HEAD)
        require_counts(counts, images, clients=len(bias))
        if not len(images):
            return bias.new_zeros(0, self.num_classes)
        real: Tensor | None = None
        if images.device.type != "cpu" and len(set(counts)) > 1:
            images, counts, real = filled_up(images, counts)
        features = class_tokens(self.model, images.to(self.dtype), counts, weights)
        scores = client_linear(features, weight, bias, counts)
        return scores if real is None else scores[real]

    def branch_norms(self, parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return ‖m B_p A_p‖ and ‖B_g A_g‖ of every block; see `adapters.branch_norms`."""
        return branch_norms(parameters, self.config)

    def portable(self, parameters: Mapping[str, Tensor], private: bool = True) -> Portable:
        """Return the adapters of both branches together, and the head if given."""
        targets = TARGETS[self.config.targets]
        needed = {f"{EVERY_BLOCK}.{target}.lora_{x}" for target in targets for x in "AB"}
        if not needed <= parameters.keys():
            raise ValueError(
                "clients keep a part of every adapter to themselves, so that what they share "
                "is no model; export those of clients"
            )
        # Scale 1: files state the scale beside the factors.
        unscaled = self.config.replaced(alpha=float(self.config.rank))
        stacked = {t: low_rank_factors(t, parameters, unscaled, private) for t in targets}
        factors = {
            f"blocks.{block}.{target}": (a[0, block], b[0, block])
            for block in range(self.backbone.architecture.depth)
            for target, (a, b) in stacked.items()
        }
        head = {}
        if set(HEAD) <= parameters.keys():
            client_head = client_heads(parameters, self.config, private)
            head = {name: value[0] for name, value in zip(HEAD, client_head, strict=True)}
        model = Portable(factors, head, self.config.scale)
        added = private and self.layout.global_model and self.config.composition == "residual"
        return replace(model, own_rank=model.rank - self.config.rank if added else 0)
