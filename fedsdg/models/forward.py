"""The forward pass of timm's VisionTransformer up to the class token, with per-client weights.

The blocks are walked here, over timm's own submodules: adapters put on `nn.Linear` modules from
outside are silently skipped wherever a fused path reads a weight without calling its module.
The last block is computed for the class token alone, the only one the head reads.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsdg.models.attention import attend
from fedsdg.models.low_rank import Factors, client_low_rank
from fedsdg.models.products import client_linear

SHORT = 128  # tokens up to which the packed attention beats torch's fused one on a CPU
# In bfloat16 torch's takes two to five times as long, forward and backward together, at any length;
# the bound is for memory, which the packed one needs in proportion to the square of the tokens.
SHORT_IN_BFLOAT16 = 256
_ALL = slice(None)


class Blend(NamedTuple):
    """Two weights of a layer whose outputs are mixed: (1 − α_i) common + α_i own for image i.

    ``shares`` are the α_i [B].
    """

    common: Tensor | Factors
    own: Tensor | Factors
    shares: Tensor


#: What stands for an adapted layer's weight: one matrix per client [M, out, in], or the adapters
#: beside the frozen one, or two such whose outputs are mixed.
ClientWeight = Tensor | Factors | Blend
_NONE: Mapping[str, ClientWeight] = {}
_INTO_STREAM = ("attn.proj", "mlp.fc2")


def in_bfloat16(model: Any) -> Any:
    """A copy of a frozen model whose attention and feed-forward layers compute in bfloat16.

    The stream of tokens that the blocks add to, its layer norms and the patch embedding stay as
    they are: what an adapter adds to a token is not rounded to the token's own 8 bits.
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
    weights: Mapping[str, ClientWeight] = _NONE,
) -> Tensor:
    """The normalised class tokens, which a head would read.

    Args:
        model: timm's VisionTransformer.
        images: [B, C, H, W], client by client.
        counts: images of each client, Σ = B; needed only with `weights`.
        weights: layer name -> the clients' own weights instead of the model's; Factors where the
            model comes from `in_bfloat16`.

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
    weights: Mapping[str, ClientWeight],
    class_token_only: bool,
) -> Tensor:
    """x [B, N, dim] -> [B, N, dim], or [B, 1, dim] for the class token alone."""

    def linear(name: str, module: Any, value: Tensor, outputs: slice = _ALL) -> Tensor:
        weight = weights.get(f"blocks.{index}.{name}")
        if isinstance(weight, Blend):
            common = times(name, module, value, outputs, weight.common)
            own = times(name, module, value, outputs, weight.own)
            return torch.lerp(common, own, weight.shares.to(own.dtype)[:, None, None])
        return times(name, module, value, outputs, weight)

    def times(
        name: str, module: Any, value: Tensor, outputs: slice, weight: Tensor | Factors | None
    ) -> Tensor:
        bias = None if module.bias is None else module.bias[outputs]
        if weight is None:
            return F.linear(value, module.weight[outputs], bias)
        rows = [count * value.shape[1] for count in counts]
        flat = value.reshape(-1, value.shape[-1])
        if isinstance(weight, Factors):
            own = Factors(weight.a, weight.b[:, outputs])
            product = client_low_rank(flat, module.weight[outputs], bias, own, rows)
            if name not in _INTO_STREAM:
                product = product.to(value.dtype)
        else:
            if bias is None:
                bias = weight.new_zeros(module.weight[outputs].shape[0])
            product = client_linear(flat, weight[:, outputs], bias, rows)
        return product.view(*value.shape[:-1], -1)

    attention, mlp = block.attn, block.mlp
    normed = block.norm1(x).to(attention.qkv.weight.dtype)
    if class_token_only:
        x, width = x[:, :1], attention.attn_dim
        query = linear("attn.qkv", attention.qkv, normed[:, :1], slice(0, width))
        packed = linear("attn.qkv", attention.qkv, normed, slice(width, None))
        mixed = _mix(attention, packed, query)
    else:
        mixed = _mix(attention, linear("attn.qkv", attention.qkv, normed), None)
    x = x + block.drop_path1(block.ls1(linear("attn.proj", attention.proj, attention.norm(mixed))))
    normed = block.norm2(x).to(mlp.fc1.weight.dtype)
    hidden = mlp.norm(mlp.act(linear("mlp.fc1", mlp.fc1, normed)))
    return x + block.drop_path2(block.ls2(linear("mlp.fc2", mlp.fc2, hidden)))


def _mix(attention: Any, packed: Tensor, query: Tensor | None) -> Tensor:
    """Attention of `packed` (q), k, v [B, N, 3·C | 2·C], by the fastest way that fits."""
    plain = type(attention.q_norm) is nn.Identity and type(attention.k_norm) is nn.Identity
    heads, tokens = attention.num_heads, packed.shape[1]
    own_type = packed.dtype == attention.qkv.weight.dtype  # not under autocast
    short = SHORT_IN_BFLOAT16 if packed.dtype == torch.bfloat16 else SHORT
    if plain and own_type and packed.device.type == "cpu" and tokens <= short:
        return attend(packed, heads, attention.scale, query)
    split = packed.view(*packed.shape[:2], -1, heads, attention.head_dim).permute(2, 0, 3, 1, 4)
    # All at once: picked one by one, each would have a matrix of zeros in the backward pass.
    *first, k, v = split.unbind(0)
    if query is None:
        q = first[0]
    else:
        q = query.view(*query.shape[:2], heads, attention.head_dim).transpose(1, 2)
    q, k = attention.q_norm(q), attention.k_norm(k)
    if attention.fused_attn:
        mixed = F.scaled_dot_product_attention(q, k, v, scale=attention.scale)
    else:
        mixed = (q * attention.scale @ k.transpose(-2, -1)).softmax(dim=-1) @ v
    return mixed.transpose(1, 2).flatten(2)
