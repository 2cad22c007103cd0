"""Self-attention for short sequences on a CPU, with its backward pass written by hand.

Queries, keys and values arrive packed in one tensor and their gradients leave packed in one, so
autograd neither slices nor stacks them: with 17 tokens such copies cost as much as the products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def attend(packed: Tensor, heads: int, scale: float, query: Tensor | None = None) -> Tensor:
    """softmax(scale · Q Kᵀ) V per head.

    Args:
        packed: [B, N, 3·C], queries, keys and values as timm's `qkv` layer gives them;
            [B, N, 2·C], keys and values, when `query` is given.
        heads: divides C.
        query: [B, Q, C], for instance the class token's alone.

    Returns:
        [B, N, C], or [B, Q, C] with `query`.
    """
    output: Tensor = _Attend.apply(packed, query, heads, scale)
    return output


def _split(packed: Tensor, parts: int, heads: int) -> Tensor:
    """[B, N, parts·C] -> [parts, B·heads, N, C/heads]."""
    batch, tokens, width = packed.shape
    split = packed.reshape(batch, tokens, parts, heads, width // (parts * heads))
    return split.permute(2, 0, 3, 1, 4).reshape(parts, batch * heads, tokens, -1)


def _join(split: Tensor, batch: int) -> Tensor:
    """The inverse of `_split`."""
    parts, rows, tokens, width = split.shape
    heads = rows // batch
    joined = split.view(parts, batch, heads, tokens, width).permute(1, 3, 0, 2, 4)
    return joined.reshape(batch, tokens, parts * heads * width)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, packed: Tensor, query: Tensor | None, heads: int, scale: float) -> Tensor:
        split = _split(packed, 3 if query is None else 2, heads)
        q = split[0] if query is None else _split(query, 1, heads)[0]
        k, v = split[-2], split[-1]
        p = torch.bmm(q * scale, k.transpose(1, 2)).softmax(dim=-1)
        ctx.save_for_backward(split, q, p)
        ctx.scale, ctx.batch, ctx.own_query = scale, packed.shape[0], query is not None
        return _join(torch.bmm(p, v)[None], packed.shape[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        split, q, p = ctx.saved_tensors
        k, v = split[-2], split[-1]
        batch = ctx.batch
        slope = _split(gradients[0], 1, q.shape[0] // batch)[0]
        to_split = torch.empty_like(split)
        to_q = torch.empty_like(q) if ctx.own_query else to_split[0]
        torch.bmm(p.transpose(1, 2), slope, out=to_split[-1])
        to_p = torch.bmm(slope, v.transpose(1, 2))
        to_scores = torch._softmax_backward_data(to_p, p, -1, p.dtype).mul_(ctx.scale)
        torch.bmm(to_scores, k, out=to_q)
        torch.bmm(to_scores.transpose(1, 2), q, out=to_split[-2])
        to_query = _join(to_q[None], batch) if ctx.own_query else None
        return _join(to_split, batch), to_query, None, None
