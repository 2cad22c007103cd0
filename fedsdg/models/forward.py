"""The forward pass of timm's VisionTransformer up to the class token, with per-client weights.

The blocks are walked here, over timm's own submodules: adapters put on `nn.Linear` modules from
outside are silently skipped wherever a fused path reads a weight without calling its module.
The last block is computed for the class token alone, the only one the head reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsdg.models.attention import attend
from fedsdg.models.products import client_linear

SHORT = 128  # tokens up to which the packed attention beats torch's fused one on a CPU
_ALL = slice(None)
_NONE: Mapping[str, Tensor] = {}


def class_tokens(
    model: Any, images: Tensor, counts: Sequence[int] = (), weights: Mapping[str, Tensor] = _NONE
) -> Tensor:
    """The normalised class tokens, which a head would read.

    Args:
        model: timm's VisionTransformer.
        images: [B, C, H, W], client by client.
        counts: images of each client, Σ = B; needed only with `weights`.
        weights: layer name -> [M, out, in], the clients' own weights instead of the model's.

    Returns:
        [B, dim].
    """
    x = model.norm_pre(model._pos_embed(model.patch_embed(images)))
    last = len(model.blocks) - 1
    for index, block in enumerate(model.blocks):
        x = _block(index, block, x, counts, weights, class_token_only=index == last)
    features: Tensor = model.fc_norm(model.norm(x[:, 0]))
    return features


def _block(
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
    x = x + block.drop_path1(block.ls1(linear("attn.proj", attention.proj, attention.norm(mixed))))
    hidden = mlp.norm(mlp.act(linear("mlp.fc1", mlp.fc1, block.norm2(x))))
    return x + block.drop_path2(block.ls2(linear("mlp.fc2", mlp.fc2, hidden)))


def _mix(attention: Any, packed: Tensor, query: Tensor | None) -> Tensor:
    """Attention of `packed` (q), k, v [B, N, 3·C | 2·C], by the fastest way that fits."""
    plain = type(attention.q_norm) is nn.Identity and type(attention.k_norm) is nn.Identity
    heads, tokens = attention.num_heads, packed.shape[1]
    exact = packed.dtype in (torch.float32, torch.float64)  # not under autocast
    if plain and exact and packed.device.type == "cpu" and tokens <= SHORT:
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
