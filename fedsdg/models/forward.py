"""The forward pass of timm's VisionTransformer up to the class token, with adapters of clients.

The blocks are walked here, over timm's own submodules: adapters wrapped around `nn.Linear` modules
are skipped silently wherever a fused path reads a weight without calling its module. The last block
is computed for the class token alone, the only token that the head reads.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsdg.models.attention import attend
from fedsdg.models.products import Factors, client_low_rank

#: Tokens up to which the packed attention is faster than torch's fused one on a CPU.
SHORT = 128
#: The same in bfloat16, where torch's takes two to five times as long at any length. The bound is
#: for memory, which the packed attention needs in proportion to the square of the tokens.
SHORT_IN_BFLOAT16 = 256
_INTO_STREAM = ("attn.proj", "mlp.fc2")


def in_bfloat16(model: Any) -> Any:
    """Return a copy of a frozen model whose attention and feed-forward layers are in bfloat16.

    The stream of tokens between the blocks, the layer norms and the patch embedding keep their
    type, so that what an adapter adds to a token is not rounded to the 8 bits of the token.
    """
    narrow = copy.deepcopy(model)
    for block in narrow.blocks:
        block.attn.to(torch.bfloat16)
        block.mlp.to(torch.bfloat16)
    return narrow


def class_tokens(
    model: Any,
    images: Tensor,
    counts: Sequence[int] = (),
    factors: Mapping[str, Factors] | None = None,
) -> Tensor:
    """Return the normalised class tokens, the input of a head.

    Args:
        model: timm's VisionTransformer.
        images: [B, C, H, W], client by client.
        counts: images of each client, Σ = B; needed only with `factors`.
        factors: layer name, such as `blocks.0.attn.proj` -> adapters beside that layer.

    Returns:
        [B, dim].
    """
    x = model.norm_pre(model._pos_embed(model.patch_embed(images)))
    last = len(model.blocks) - 1
    for number, block in enumerate(model.blocks):
        layers = _Layers(f"blocks.{number}", block, counts, factors or {})
        x = _block(block, layers.apply, x, class_token_only=number == last)
    features: Tensor = model.fc_norm(model.norm(x[:, 0]))
    return features


class _Layers(NamedTuple):
    """The linear layers of one block, with the adapters of clients beside them."""

    prefix: str
    block: Any
    counts: Sequence[int]
    factors: Mapping[str, Factors]

    def apply(self, name: str, x: Tensor, outputs: slice = slice(None)) -> Tensor:
        """Apply a layer to x [B, N, in]; `outputs`: these alone of its outputs."""
        module = self.block.get_submodule(name)
        weight = module.weight[outputs]
        bias = None if module.bias is None else module.bias[outputs]
        adapter = self.factors.get(f"{self.prefix}.{name}")
        if adapter is None:
            return F.linear(x, weight, bias)
        rows = [count * x.shape[1] for count in self.counts]
        adapter = Factors(adapter.a, adapter.b[:, outputs])
        product = client_low_rank(x.flatten(0, 1), weight, bias, adapter, rows)
        if name not in _INTO_STREAM:
            product = product.to(x.dtype)
        return product.view(*x.shape[:2], -1)


def _block(block: Any, apply: Callable[..., Tensor], x: Tensor, class_token_only: bool) -> Tensor:
    """Map tokens [B, N, dim] to [B, N, dim], or [B, 1, dim] for the class token alone."""
    attention, mlp = block.attn, block.mlp
    normed = block.norm1(x).to(attention.qkv.weight.dtype)
    if class_token_only:
        x = x[:, :1]
        width = attention.attn_dim
        query = apply("attn.qkv", normed[:, :1], slice(0, width))
        mixed = _mix(attention, apply("attn.qkv", normed, slice(width, None)), query)
    else:
        mixed = _mix(attention, apply("attn.qkv", normed), None)
    x = x + block.drop_path1(block.ls1(apply("attn.proj", attention.norm(mixed))))
    normed = block.norm2(x).to(mlp.fc1.weight.dtype)
    hidden = mlp.norm(mlp.act(apply("mlp.fc1", normed)))
    return x + block.drop_path2(block.ls2(apply("mlp.fc2", hidden)))


def _mix(attention: Any, packed: Tensor, query: Tensor | None) -> Tensor:
    """Attention of `packed` (q), k, v [B, N, 3·C | 2·C], by the fastest way that fits."""
    plain = type(attention.q_norm) is nn.Identity and type(attention.k_norm) is nn.Identity
    heads = attention.num_heads
    autocast = packed.dtype != attention.qkv.weight.dtype
    short = SHORT_IN_BFLOAT16 if packed.dtype == torch.bfloat16 else SHORT
    if plain and packed.device.type == "cpu" and not autocast and packed.shape[1] <= short:
        return attend(packed, heads, attention.scale, query)
    split = packed.view(*packed.shape[:2], -1, heads, attention.head_dim).permute(2, 0, 3, 1, 4)
    # Unbound at once: each one picked would have a matrix of zeros in the backward pass.
    *first, k, v = split.unbind(0)
    if query is None:
        q = first[0]
    else:
        q = query.view(*query.shape[:2], heads, attention.head_dim).transpose(1, 2)
    q = attention.q_norm(q)
    k = attention.k_norm(k)
    if attention.fused_attn:
        mixed = F.scaled_dot_product_attention(q, k, v, scale=attention.scale)
    else:
        mixed = (q * attention.scale @ k.transpose(-2, -1)).softmax(dim=-1) @ v
    return mixed.transpose(1, 2).flatten(2)
