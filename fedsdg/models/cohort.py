"""One frozen backbone, many clients: the forward pass of a cohort in a single sweep.

All clients' images run through the frozen layers together; only the adapted layers and the head,
whose weights differ per client, are multiplied client by client.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedsdg.models.adapter_config import AdapterConfig
from fedsdg.models.adapters import (
    TARGETS,
    adapted_layers,
    branch_norms,
    composed,
    make_layout,
    merge,
    merge_blocks,
    personal_head,
    side_by_side,
)
from fedsdg.models.backbones import Backbone
from fedsdg.models.forward import Blend, ClientWeight, class_tokens, in_bfloat16
from fedsdg.models.low_rank import Factors
from fedsdg.models.parameters import EVERY, Layout
from fedsdg.models.portable import HEAD, Portable
from fedsdg.models.products import client_linear, even_pays


class CohortModel:
    """The adapted backbone for cohorts of any size.

    Args:
        backbone: its weights stay frozen; it is shared, or copied when `dtype` or `device` differ.
        layout: must be `make_layout(backbone.architecture, num_classes, config)`.
        dtype, device: of the parameters, and of the computation but for what follows.
        bfloat16: the frozen products, attention and the work per token inside a block in bfloat16.
            Parameters, their gradients, the stream of tokens between blocks, layer norms and the
            head keep `dtype`. Training and evaluation then take the same path, on which the
            adapters are never merged into a weight (see `low_rank`).

    Raises:
        ValueError: `layout` belongs to another architecture, task or configuration.
    """

    def __init__(
        self,
        backbone: Backbone,
        layout: Layout,
        config: AdapterConfig,
        num_classes: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        bfloat16: bool = False,
    ) -> None:
        if layout != make_layout(backbone.architecture, num_classes, config):
            raise ValueError(
                "the layout does not belong to this backbone, number of classes and adapter "
                "configuration: make it with make_layout of the same three"
            )
        self.backbone = backbone
        self.layout = layout
        self.config = config
        self.num_classes = num_classes
        model: Any = backbone.model
        first = next(iter(model.parameters()))
        if first.dtype != dtype or first.device != torch.device(device):
            model = copy.deepcopy(model).to(dtype=dtype, device=device)
        self.model = in_bfloat16(model) if bfloat16 else model
        self.dtype = dtype
        self.bfloat16 = bfloat16
        self._adapted = adapted_layers(backbone.architecture, config)

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> CohortModel:
        """The same model computing in another type or place; float64 serves the tests."""
        return CohortModel(
            self.backbone, self.layout, self.config, self.num_classes, dtype=dtype, device=device
        )

    def effective_weights(
        self, parameters: Mapping[str, Tensor], private: bool = True
    ) -> dict[str, Any]:
        """Every client's own weights, by layer name: θ̃ = θ_g + m·θ_p (Eq. 4).

        Args:
            parameters: tensors [M, *shape] by the layout's names, or what all blocks have
                together (`of_every_block`), which is then merged together.
            private: False leaves the private branch out: θ_g alone.

        Returns:
            `{layer}` -> [M, out, in] for every adapted layer (in bfloat16: its Factors),
            `head.weight` [M, classes, dim] and `head.bias` [M, classes]. Made once per step, or
            once for a whole evaluation.
        """
        weights: dict[str, Any] = {}
        if any(name.startswith(EVERY) for name in parameters):
            for target in TARGETS[self.config.targets]:
                layers = [layer for layer in self._adapted if layer.endswith(f".{target}")]
                own = self._of_every_block(target, parameters, private)
                weights |= zip(layers, own, strict=True)
        else:
            for layer in self._adapted:
                weights[layer] = self._of_layer(layer, parameters, private)
        head = personal_head(parameters, self.config, private)
        weights["head.weight"], weights["head.bias"] = head
        return weights

    def _of_layer(
        self, layer: str, parameters: Mapping[str, Tensor], private: bool
    ) -> ClientWeight:
        """The clients' own weights of one adapted layer."""
        if self.bfloat16:
            return Factors(*side_by_side(layer, parameters, self.config, private))
        frozen = self.model.get_submodule(layer).weight
        return merge(frozen, layer, parameters, self.config, private)

    def _of_every_block(
        self, target: str, parameters: Mapping[str, Tensor], private: bool
    ) -> Iterable[ClientWeight]:
        """The clients' own weights of all layers of a kind, block by block."""
        layer = f"{EVERY}.{target}"
        # All at once: picked one by one, each would have a matrix of zeros in the backward pass.
        if self.bfloat16:
            factors = side_by_side(layer, parameters, self.config, private)
            return map(Factors, *(factor.unbind(1) for factor in factors))
        frozen = self._frozen[target]
        return merge_blocks(frozen, layer, parameters, self.config, private).unbind(1)

    @functools.cached_property
    def _frozen(self) -> dict[str, Tensor]:
        """The frozen weights of every kind of adapted layer, [blocks, out, in]."""
        return {
            target: torch.stack([block.get_submodule(target).weight for block in self.model.blocks])
            for target in TARGETS[self.config.targets]
        }

    def branch_norms(self, parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """‖m B_p A_p‖ and ‖B_g A_g‖ of every block, [M, blocks] each (see `adapters`).

        For models with a private branch alone.
        """
        return branch_norms(self._adapted, parameters, self.config)

    def portable(self, parameters: Mapping[str, Tensor], private: bool = True) -> Portable:
        """See `ClientModel`: the adapters of both branches together, and the head if there."""
        for layer in self._adapted:
            if not {f"{layer}.lora_A", f"{layer}.lora_B"} <= parameters.keys():
                raise ValueError(
                    "clients keep a part of every adapter to themselves, so that what they share "
                    "is no model; export those of clients"
                )
        config, factors = self.config, {}
        for layer in self._adapted:
            a, b = composed(layer, parameters, config, private)
            factors[layer] = (a[0], b[0])
        head = {}
        if set(HEAD) <= parameters.keys():
            own = personal_head(parameters, config, private)
            head = {name: value[0] for name, value in zip(HEAD, own, strict=True)}
        apart = private and self.layout.global_model and config.composition == "residual"
        rank = max(a.shape[0] for a, _ in factors.values())
        # One rank for all layers, as peft's format has it: zeros where a block has no branch.
        factors = {
            layer: (pad(a, (0, 0, 0, rank - len(a))), pad(b, (0, rank - len(a))))
            for layer, (a, b) in factors.items()
        }
        added = rank - config.rank if apart else 0
        return Portable(factors, head, config.scale, own_rank=added)

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
            private: False ignores the private branch: θ_g alone.

        Returns:
            [B, classes].

        Raises:
            ValueError: `counts` fits neither the images nor the parameters.
        """
        return self.forward(images, counts, self.effective_weights(parameters, private))

    def forward(self, images: Tensor, counts: Sequence[int], weights: Mapping[str, Any]) -> Tensor:
        """`logits` from what `effective_weights` has already made."""
        require_counts(counts, images, clients=weights["head.bias"].shape[0])
        if not len(images):
            return weights["head.bias"].new_zeros(0, self.num_classes)
        kept: Tensor | None = None
        if images.device.type != "cpu" and len(set(counts)) > 1:
            images, counts, kept = even(images, counts)
        features = class_tokens(self.model, images.to(self.dtype), counts, weights)
        scores = client_linear(features, weights["head.weight"], weights["head.bias"], counts)
        return scores if kept is None else scores[kept]

    def branches(self, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
        """Every client's weights with the shared branch u and with the private one v alone.

        For ``features`` and ``blended``, of a model whose composition is "mixture".
        """
        alone = copy.copy(self)
        alone.config = replace(self.config, gate_fixed=1.0)
        common = self.effective_weights(parameters, private=False)
        return {"common": common, "own": alone.effective_weights(parameters)}

    def features(
        self, images: Tensor, counts: Sequence[int], branches: Mapping[str, Any]
    ) -> Tensor:
        """Class tokens [B, dim], which a head would read, with v alone; see ``branches``."""
        return class_tokens(self.model, images.to(self.dtype), counts, branches["own"])

    def blended(
        self, images: Tensor, counts: Sequence[int], branches: Mapping[str, Any], shares: Tensor
    ) -> Tensor:
        """Scores [B, classes] whose adapted layers mix their outputs image by image.

        W x + (1 − α_i) s B_u A_u x + α_i s B_v A_v x for image i.

        Args:
            images: [B, …], client by client.
            counts: images of each client.
            branches: what ``branches`` has made.
            shares: [B], the α_i.
        """
        common, own = branches["common"], branches["own"]
        blends = {layer: Blend(common[layer], own[layer], shares) for layer in self._adapted}
        tokens = class_tokens(self.model, images.to(self.dtype), counts, blends)
        return client_linear(tokens, common["head.weight"], common["head.bias"], counts)


def require_counts(counts: Sequence[int], images: Tensor, clients: int) -> None:
    """Raise ``ValueError`` unless the counts are those of the clients, and sum to the images."""
    if len(counts) != clients or sum(counts) != images.shape[0] or min(counts, default=0) < 0:
        raise ValueError(
            f"counts {list(counts)} must be {clients} non-negative numbers that sum to the "
            f"{images.shape[0]} images"
        )


def even(images: Tensor, counts: Sequence[int]) -> tuple[Tensor, Sequence[int], Tensor | None]:
    """Equally many images for every client, so that each product is one batch and not one a client.

    For GPUs, where many small launches cost more than the arithmetic of images that nobody reads.
    Training brings its batches so (see federation/steps.py); an evaluation cuts its samples without
    regard to clients. Nothing changes where it does not pay (see `even_pays`).

    Returns:
        images (fillers repeat the client's last one), counts, and the places of the real ones.
    """
    size = max(counts)
    if not even_pays(counts):
        return images, counts, None
    starts = list(itertools.accumulate(counts, initial=0))
    places = [
        min(start + j, len(images) - 1) if j < count else max(start + count - 1, 0)
        for start, count in zip(starts, counts, strict=False)
        for j in range(size)
    ]
    kept = [k * size + j for k, count in enumerate(counts) for j in range(count)]
    index = torch.tensor([places, kept + [0] * (len(places) - len(kept))], device=images.device)
    return images[index[0]], [size] * len(counts), index[1, : len(kept)]
