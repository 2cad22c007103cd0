"""One frozen backbone, many clients: the forward pass of a cohort in a single sweep.

All clients' images run through the frozen layers together; only the adapted layers and the head,
whose weights differ per client, are multiplied client by client.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsdg.models.adapters import AdapterConfig, adapted_layers, make_layout, merge
from fedsdg.models.attention import attend
from fedsdg.models.backbones import Backbone
from fedsdg.models.parameters import Layout
from fedsdg.models.products import client_linear

SHORT = 128  # tokens up to which the packed attention beats torch's fused one on a CPU
_ALL = slice(None)


class CohortModel:
    """The adapted backbone for cohorts of any size.

    The blocks are walked here, over timm's own submodules: adapters put on `nn.Linear` modules from
    outside are silently skipped wherever a fused path reads a weight without calling its module.
    The last block is computed for the class token alone, the only one the head reads.

    Args:
        backbone: its weights stay frozen; it is shared, or copied when `dtype` or `device` differ.
        layout: must be `make_layout(backbone.architecture, num_classes, config)`.
        dtype, device: of the computation; parameters must have the same.

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
        self.model = model
        self.dtype = dtype
        self._adapted = tuple(adapted_layers(backbone.architecture, config))

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> CohortModel:
        """The same model computing in another type or place; float64 serves the tests."""
        return CohortModel(
            self.backbone, self.layout, self.config, self.num_classes, dtype=dtype, device=device
        )

    def effective_weights(
        self, parameters: Mapping[str, Tensor], private: bool = True
    ) -> dict[str, Tensor]:
        """Every client's own weights, by layer name: θ̃ = θ_g + m·θ_p (Eq. 4).

        Args:
            parameters: tensors [M, *shape] by the layout's names.
            private: False leaves the private branch out: θ_g alone.

        Returns:
            `{layer}` -> [M, out, in] for every adapted layer, `head.weight` [M, classes, dim] and
            `head.bias` [M, classes]. Made once per step, or once for a whole evaluation.
        """
        merged = {
            layer: merge(
                self.model.get_submodule(layer).weight, layer, parameters, self.config, private
            )
            for layer in self._adapted
        }
        merged["head.weight"] = parameters["head.weight"]
        merged["head.bias"] = parameters["head.bias"]
        return merged

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

    def forward(
        self, images: Tensor, counts: Sequence[int], weights: Mapping[str, Tensor]
    ) -> Tensor:
        """`logits` from weights that `effective_weights` has already merged."""
        clients = weights["head.bias"].shape[0]
        if len(counts) != clients or sum(counts) != images.shape[0] or min(counts, default=0) < 0:
            raise ValueError(
                f"counts {list(counts)} must be {clients} non-negative numbers that sum to the "
                f"{images.shape[0]} images"
            )
        model = self.model
        x = model.norm_pre(model._pos_embed(model.patch_embed(images.to(self.dtype))))
        last = len(model.blocks) - 1
        for index, block in enumerate(model.blocks):
            x = self._block(index, block, x, counts, weights, class_token_only=index == last)
        features = model.fc_norm(model.norm(x[:, 0]))
        return client_linear(features, weights["head.weight"], weights["head.bias"], counts)

    def _block(
        self,
        index: int,
        block: Any,
        x: Tensor,
        counts: Sequence[int],
        weights: Mapping[str, Tensor],
        class_token_only: bool,
    ) -> Tensor:
        """x [B, N, dim] -> [B, N, dim], or [B, 1, dim] for the class token alone."""

        def linear(name: str, module: Any, value: Tensor, outputs: slice = _ALL) -> Tensor:
            weight = weights.get(f"blocks.{index}.{name}")
            bias = None if module.bias is None else module.bias[outputs]
            if weight is None:
                return F.linear(value, module.weight[outputs], bias)
            if bias is None:
                bias = weight.new_zeros(module.weight[outputs].shape[0])
            rows = [count * value.shape[1] for count in counts]
            flat = value.reshape(-1, value.shape[-1])
            product = client_linear(flat, weight[:, outputs], bias, rows)
            return product.view(*value.shape[:-1], -1)

        attention, mlp = block.attn, block.mlp
        normed = block.norm1(x)
        if class_token_only:
            x, width = x[:, :1], attention.attn_dim
            query = linear("attn.qkv", attention.qkv, normed[:, :1], slice(0, width))
            packed = linear("attn.qkv", attention.qkv, normed, slice(width, None))
            mixed = _mix(attention, packed, query)
        else:
            mixed = _mix(attention, linear("attn.qkv", attention.qkv, normed), None)
        x = x + block.ls1(linear("attn.proj", attention.proj, attention.norm(mixed)))
        hidden = mlp.norm(mlp.act(linear("mlp.fc1", mlp.fc1, block.norm2(x))))
        return x + block.ls2(linear("mlp.fc2", mlp.fc2, hidden))


def _mix(attention: Any, packed: Tensor, query: Tensor | None) -> Tensor:
    """Attention of `packed` (q), k, v [B, N, 3·C | 2·C], by the fastest way that fits."""
    plain = type(attention.q_norm) is nn.Identity and type(attention.k_norm) is nn.Identity
    heads, tokens = attention.num_heads, packed.shape[1]
    if plain and packed.device.type == "cpu" and tokens <= SHORT:
        return attend(packed, heads, attention.scale, query)
    split = packed.view(*packed.shape[:2], -1, heads, attention.head_dim).permute(2, 0, 3, 1, 4)
    q = split[0]
    if query is not None:
        q = query.view(*query.shape[:2], heads, attention.head_dim).transpose(1, 2)
    q, k, v = attention.q_norm(q), attention.k_norm(split[-2]), split[-1]
    if attention.fused_attn:
        mixed = F.scaled_dot_product_attention(q, k, v, scale=attention.scale)
    else:
        mixed = (q * attention.scale @ k.transpose(-2, -1)).softmax(dim=-1) @ v
    return mixed.transpose(1, 2).flatten(2)
