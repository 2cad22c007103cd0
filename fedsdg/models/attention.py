"""Self-attention for short sequences, with its backward pass written by hand.

Queries, keys and values arrive packed in one tensor, and their gradients leave packed in one, so
autograd neither slices nor stacks them: with 17 tokens such copies cost as much as the products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def attend(packed: Tensor, heads: int, scale: float, query: Tensor | None = None) -> Tensor:
    """Return softmax(scale · Q Kᵀ) V for every head.

    Args:
        packed: [B, N, 3·C], queries, keys and values as timm's `qkv` layer gives them; [B, N, 2·C],
            keys and values, where `query` is given.
        heads: number of heads; divides C.
        scale: factor of the scores.
        query: [B, Q, C], for instance the class token's alone.

    Returns:
        [B, N, C], or [B, Q, C] with `query`.
    """
    output: Tensor = _Attend.apply(packed, query, heads, scale)
    return output


def _split(packed: Tensor, parts: int, heads: int) -> Tensor:
    """[B, N, parts·C] -> [parts, B·heads, N, C/heads]."""
    batch, tokens, width = packed.shape
    each = width // (parts * heads)
    split = packed.reshape(batch, tokens, parts, heads, each).permute(2, 0, 3, 1, 4)
    return split.reshape(parts, batch * heads, tokens, each)


def _join(split: Tensor, heads: int) -> Tensor:
    """Invert `_split`."""
    parts, rows, tokens, width = split.shape
    batch = rows // heads
    joined = split.view(parts, batch, heads, tokens, width).permute(1, 3, 0, 2, 4)
    return joined.reshape(batch, tokens, parts * heads * width)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, packed: Tensor, query: Tensor | None, heads: int, scale: float) -> Tensor:
        split = _split(packed, 3 if query is None else 2, heads)
        q = split[0] if query is None else _split(query, 1, heads)[0]
        k, v = split[-2], split[-1]
        p = torch.bmm(q * scale, k.mT).softmax(dim=-1)
        ctx.save_for_backward(split, q, p)
        ctx.scale = scale
        ctx.heads = heads
        ctx.packed_query = query is None
        return _join(torch.bmm(p, v)[None], heads)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        split, q, p = ctx.saved_tensors
        k, v = split[-2], split[-1]
        slope = _split(gradients[0], 1, ctx.heads)[0]
        to_split = torch.empty_like(split)
        to_q = to_split[0] if ctx.packed_query else torch.empty_like(q)
        torch.bmm(p.mT, slope, out=to_split[-1])
        to_p = torch.bmm(slope, v.mT)
        to_scores = torch._softmax_backward_data(to_p, p, -1, p.dtype).mul_(ctx.scale)
        torch.bmm(to_scores, k, out=to_q)
        torch.bmm(to_scores.mT, q, out=to_split[-2])
        to_query = None if ctx.packed_query else _join(to_q[None], ctx.heads)
        return _join(to_split, ctx.heads), to_query, None, None
