"""Products in which every client's rows meet that client's own weight matrix."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

#: How many times as many images there may be where every client is given equally many.
MOST_FILLED = 2.0


def even_pays(counts: Sequence[int]) -> bool:
    """Whether a GPU gains from equally many rows for every client: one launch and not one each.

    Not where there would be more than ``MOST_FILLED`` times as many.
    """
    return len(counts) * max(counts) <= MOST_FILLED * sum(counts)


def client_linear(x: Tensor, weight: Tensor, bias: Tensor, rows: Sequence[int]) -> Tensor:
    """x_k W_kᵀ + b_k for clients k = 1…M whose rows are stacked in `x`.

    Args:
        x: [N, in], the clients' rows one after another.
        weight: [M, out, in].
        bias: [M, out], or [out] where it is frozen and common to all.
        rows: M numbers, Σ = N; a client with 0 rows costs nothing and gets gradient zero.

    Returns:
        [N, out].
    """
    output: Tensor = _ClientLinear.apply(x, weight, bias, tuple(rows))
    return output


def equal_runs(rows: Sequence[int]) -> Iterator[tuple[slice, slice, int]]:
    """Runs of consecutive clients with equally many rows: (clients, rows of x, rows per client)."""
    client = start = 0
    for count, group in itertools.groupby(rows):
        length = len(list(group))
        stop = start + count * length
        yield slice(client, client + length), slice(start, stop), count
        client, start = client + length, stop


class _ClientLinear(torch.autograd.Function):
    """One batched product per run, faster than one per client, written into one output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, rows: tuple[int, ...]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.rows = rows
        output = x.new_empty(x.shape[0], weight.shape[1])
        for clients, part, count in equal_runs(rows):
            if count:
                own = bias if bias.dim() == 1 else bias[clients, None]
                shape = (-1, count, weight.shape[2])
                product = output[part].view(-1, count, weight.shape[1])
                transposed = weight[clients].transpose(1, 2)
                torch.baddbmm(own, x[part].view(shape), transposed, out=product)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        slope = gradients[0].contiguous()
        need_x, need_weight, need_bias, _ = ctx.needs_input_grad
        outputs, inputs = weight.shape[1:]
        to_x = torch.empty_like(x) if need_x else None
        to_weight = weight.new_empty(weight.shape) if need_weight else None
        to_bias = weight.new_empty(weight.shape[:2]) if need_bias else None
        for clients, part, count in equal_runs(ctx.rows):
            if not count:
                for gradient in (to_weight, to_bias):
                    if gradient is not None:
                        gradient[clients].zero_()
                continue
            own = slope[part].view(-1, count, outputs)
            if to_x is not None:
                torch.bmm(own, weight[clients], out=to_x[part].view(-1, count, inputs))
            if to_weight is not None:
                values = x[part].view(-1, count, inputs)
                torch.bmm(own.transpose(1, 2), values, out=to_weight[clients])
            if to_bias is not None:
                torch.sum(own, dim=1, out=to_bias[clients])
        return to_x, to_weight, to_bias, None
