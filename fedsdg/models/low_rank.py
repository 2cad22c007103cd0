"""A frozen product in bfloat16 with every client's adapters beside it, not merged into it.

A merged weight W + ΔW has 8 bits for both: an adapter far below 2⁻⁸ of W would be rounded away.
Here the branches keep a product of their own, rank by rank, and meet the frozen one in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsdg.models.products import equal_runs


class Factors(NamedTuple):
    """ΔW_k = b_k a_k of M clients: `a` [M, R, in], `b` [M, out, R] in float32, scales included."""

    a: Tensor
    b: Tensor


def client_low_rank(
    x: Tensor, weight: Tensor, bias: Tensor | None, factors: Factors, rows: Sequence[int]
) -> Tensor:
    """x_k (W + b_k a_k)ᵀ + bias for clients k = 1…M whose rows are stacked in `x`.

    With u = eps/2 of the type of `x`, an output is off by at most about u·(|x|·|W|ᵀ + |bias|) for
    the frozen part plus 3u·|x|·|a|ᵀ·|b|ᵀ for the branches (x itself taken as exact): the error of
    the branches is in proportion to the branches, however small they are.

    Args:
        x: [N, in], the clients' rows one after another, in the type of the frozen weight.
        weight, bias: frozen, [out, in] and [out], in the same type.
        factors: in float32, where their gradients arrive.
        rows: M numbers, Σ = N.

    Returns:
        [N, out] in the type of the factors.
    """
    output: Tensor = _ClientLowRank.apply(x, weight, bias, *factors, tuple(rows))
    return output


class _ClientLowRank(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        a: Tensor,
        b: Tensor,
        rows: tuple[int, ...],
    ) -> Tensor:
        low = a.to(x.dtype)
        inner = x.new_empty(x.shape[0], a.shape[1])
        output = F.linear(x, weight, bias).to(b.dtype)
        for clients, part, count in equal_runs(rows):
            if count:
                middle = inner[part].view(-1, count, inner.shape[1])
                values = x[part].view(-1, count, x.shape[1])
                torch.bmm(values, low[clients].transpose(1, 2), out=middle)
                product = output[part].view(-1, count, output.shape[1])
                product.baddbmm_(middle.to(b.dtype), b[clients].transpose(1, 2))
        ctx.save_for_backward(x, weight, low, b, inner)
        ctx.rows = rows
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, low, b, inner = ctx.saved_tensors
        slope = gradients[0].to(x.dtype).contiguous()
        narrow = b.to(x.dtype)
        to_inner = torch.empty_like(inner)
        to_x = slope @ weight if ctx.needs_input_grad[0] else None
        to_a, to_b = torch.zeros_like(low), torch.zeros_like(narrow)
        for clients, part, count in equal_runs(ctx.rows):
            if not count:
                continue
            own = slope[part].view(-1, count, slope.shape[1])
            values = x[part].view(-1, count, x.shape[1])
            middle = to_inner[part].view(-1, count, inner.shape[1])
            torch.bmm(own, narrow[clients], out=middle)
            torch.bmm(middle.transpose(1, 2), values, out=to_a[clients])
            mixed = inner[part].view(-1, count, inner.shape[1])
            torch.bmm(own.transpose(1, 2), mixed, out=to_b[clients])
            if to_x is not None:
                to_x[part].view(-1, count, x.shape[1]).baddbmm_(middle, low[clients])
        return to_x, None, None, to_a.to(b.dtype), to_b.to(b.dtype), None
