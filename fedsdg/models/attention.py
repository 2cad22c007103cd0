"""Self-attention for short sequences on a CPU, with its backward pass written by hand.

Queries, keys and values arrive packed in one tensor and their gradients leave packed in one, so
autograd neither slices nor stacks them: with 17 tokens such copies cost as much as the products.
Where tokens are so few that torch's products of a head's small matrices cost more than their
arithmetic, kernels compiled for it take over (see `attention_kernels`).
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

#: Tokens up to which the kernels take over, in float32. On one core, forward and backward together
#: take a fifth of torch's time with 5 tokens and heads 16 wide, 0.9 with 17; heads 64 wide gain at
#: 65 tokens still, but only on one core: the kernels use no second.
COMPILED = 20


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
    few = packed.shape[1] <= COMPILED
    if not (few and packed.device.type == "cpu" and packed.dtype == torch.float32 and _compiler()):
        output: Tensor = _Attend.apply(packed, query, heads, scale)
        return output
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (packed, query)):
        output = _Compiled.apply(packed, query, heads, scale)
        return output
    return _forward(*_in_memory(packed, query), heads, scale, keep=False)[0]


@functools.cache
def _compiler() -> bool:
    """Whether numba is there, which images for GPUs often lack; else results differ by rounding."""
    return find_spec("numba") is not None


def _split(packed: Tensor, parts: int, heads: int) -> Tensor:
    """[B, N, parts·C] -> [parts, B·heads, N, C/heads]."""
    batch, tokens, width = packed.shape
    each = width // (parts * heads)
    split = packed.reshape(batch, tokens, parts, heads, each).permute(2, 0, 3, 1, 4)
    return split.reshape(parts, batch * heads, tokens, each)


def _join(split: Tensor, heads: int) -> Tensor:
    """The inverse of `_split`."""
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
        p = torch.bmm(q * scale, k.transpose(1, 2)).softmax(dim=-1)
        ctx.save_for_backward(split, q, p)
        ctx.scale, ctx.heads, ctx.own_query = scale, heads, query is not None
        return _join(torch.bmm(p, v)[None], heads)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        split, q, p = ctx.saved_tensors
        k, v = split[-2], split[-1]
        heads = ctx.heads
        slope = _split(gradients[0], 1, heads)[0]
        to_split = torch.empty_like(split)
        to_q = torch.empty_like(q) if ctx.own_query else to_split[0]
        torch.bmm(p.transpose(1, 2), slope, out=to_split[-1])
        to_p = torch.bmm(slope, v.transpose(1, 2))
        to_scores = torch._softmax_backward_data(to_p, p, -1, p.dtype).mul_(ctx.scale)
        torch.bmm(to_scores, k, out=to_q)
        torch.bmm(to_scores.transpose(1, 2), q, out=to_split[-2])
        to_query = _join(to_q[None], heads) if ctx.own_query else None
        return _join(to_split, heads), to_query, None, None


def _in_memory(packed: Tensor, query: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Both with their numbers side by side, as the kernels read them."""
    return packed.contiguous(), None if query is None else query.contiguous()


def _sizes(packed: Tensor, query: Tensor | None) -> tuple[int, int, int]:
    """Queries, tokens, and the width C of all heads."""
    tokens, width = packed.shape[1:]
    return (tokens, tokens, width // 3) if query is None else (query.shape[1], tokens, width // 2)


def _forward(
    packed: Tensor, query: Tensor | None, heads: int, scale: float, keep: bool
) -> tuple[Tensor, Tensor]:
    """The output, and the probabilities [B, heads, Q, N]: scratch for one image without `keep`."""
    from fedsdg.models.attention_kernels import kernels  # the compiler takes a second to import

    batch = packed.shape[0]
    queries, tokens, width = _sizes(packed, query)
    output = packed.new_empty(batch, queries, width)
    probabilities = packed.new_empty(batch if keep else 1, heads, queries, tokens)
    kernels(width // heads).forward(
        packed.data_ptr(),
        (packed if query is None else query).data_ptr(),
        output.data_ptr(),
        probabilities.view(-1).numpy(),
        probabilities.data_ptr(),
        batch,
        queries,
        tokens,
        heads,
        np.float32(scale),
        query is not None,
        keep,
    )
    return output, probabilities


class _Compiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, packed: Tensor, query: Tensor | None, heads: int, scale: float) -> Tensor:
        packed, query = _in_memory(packed, query)
        output, probabilities = _forward(packed, query, heads, scale, keep=True)
        ctx.save_for_backward(packed, query, probabilities)
        ctx.scale = scale
        return output

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from fedsdg.models.attention_kernels import kernels

        packed, query, probabilities = ctx.saved_tensors
        slope = gradients[0].contiguous()
        heads = probabilities.shape[1]
        queries, tokens, width = _sizes(packed, query)
        to_packed = torch.empty_like(packed)
        to_query = None if query is None else torch.empty_like(query)
        slopes = packed.new_empty(queries, tokens)
        kernels(width // heads).backward(
            packed.data_ptr(),
            (packed if query is None else query).data_ptr(),
            slope.data_ptr(),
            to_packed.data_ptr(),
            (to_packed if to_query is None else to_query).data_ptr(),
            probabilities.view(-1).numpy(),
            probabilities.data_ptr(),
            slopes.view(-1).numpy(),
            slopes.data_ptr(),
            packed.shape[0],
            queries,
            tokens,
            heads,
            np.float32(ctx.scale),
            query is not None,
        )
        return to_packed, to_query, None, None
