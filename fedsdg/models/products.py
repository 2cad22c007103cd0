"""Products in which the rows of each client meet the weights of that client.

Rows stand client by client. Consecutive clients with equally many rows share one batched product.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

#: Images after filling up, at most, as a multiple of the images before.
MOST_FILLED = 2.0


class Run(NamedTuple):
    """Consecutive clients with equally many rows each."""

    clients: slice
    rows: slice
    each: int
    "rows of each client"

    @property
    def length(self) -> int:
        """Number of clients."""
        return int(self.clients.stop - self.clients.start)


def equal_runs(counts: Sequence[int]) -> Iterator[Run]:
    """Yield the runs of consecutive clients with equal counts; `counts[k]` are the rows of k."""
    client = 0
    row = 0
    for count, group in itertools.groupby(counts):
        length = len(list(group))
        yield Run(slice(client, client + length), slice(row, row + count * length), count)
        client += length
        row += count * length


def client_linear(x: Tensor, weight: Tensor, bias: Tensor, counts: Sequence[int]) -> Tensor:
    """Return x_k W_kᵀ + b_k for clients k = 1 … M.

    Args:
        x: [N, in], the clients' rows one after another.
        weight: [M, out, in].
        bias: [M, out].
        counts: rows of each client, Σ = N; a client without rows costs nothing and has gradient 0.

    Returns:
        [N, out].
    """
    runs = list(equal_runs(counts))
    lengths = [run.length for run in runs]
    sizes = [run.each * run.length for run in runs]
    # Split at once: each slice would allocate a whole matrix of zeros in the backward pass.
    parts = zip(runs, x.split(sizes), weight.split(lengths), bias.split(lengths), strict=True)
    products = [
        torch.baddbmm(b[:, None], rows.unflatten(0, (run.length, run.each)), w.mT).flatten(0, 1)
        for run, rows, w, b in parts
    ]
    return products[0] if len(products) == 1 else torch.cat(products)


class Factors(NamedTuple):
    """Adapters ΔW_k = b_k a_k of M clients in one layer, with every scale and gate in b."""

    a: Tensor
    "[M, R, in]"
    b: Tensor
    "[M, out, R]"


def client_low_rank(
    x: Tensor, weight: Tensor, bias: Tensor | None, factors: Factors, counts: Sequence[int]
) -> Tensor:
    """Return x_k (W + b_k a_k)ᵀ + bias for clients k = 1 … M.

    The adapters are never merged into W. With a frozen W in bfloat16 the two products meet in
    float32: a merged weight has 8 bits for both, in which an adapter below 2⁻⁸ of W would vanish.
    With u = eps/2 of the type of `x`, an output is off by at most about u (|x| |W|ᵀ + |bias|) for
    the frozen product plus 3u |x| |a|ᵀ |b|ᵀ for the adapters, however small they are.

    Args:
        x: [N, in], the clients' rows one after another, in the type of `weight`.
        weight: frozen, [out, in].
        bias: frozen, [out], or None.
        factors: in the type of the trained parameters, in which their gradients arrive.
        counts: rows of each client, Σ = N.

    Returns:
        [N, out] in the type of the factors.
    """
    product: Tensor = _ClientLowRank.apply(x, weight, bias, *factors, tuple(counts))
    return product


class _ClientLowRank(torch.autograd.Function):
    """Adds the low-rank products in place; autograd would keep and add whole copies of outputs."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        a: Tensor,
        b: Tensor,
        counts: tuple[int, ...],
    ) -> Tensor:
        low = a.to(x.dtype)
        inner = x.new_empty(len(x), a.shape[1])
        output = F.linear(x, weight, bias).to(b.dtype)
        for run in equal_runs(counts):
            if run.each:
                middle = _batched(inner, run)
                torch.bmm(_batched(x, run), low[run.clients].mT, out=middle)
                _batched(output, run).baddbmm_(middle.to(b.dtype), b[run.clients].mT)
        ctx.save_for_backward(x, weight, low, b, inner)
        ctx.counts = counts
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, low, b, inner = ctx.saved_tensors
        slope = gradients[0].to(x.dtype).contiguous()
        narrow = b.to(x.dtype)
        to_inner = torch.empty_like(inner)
        to_x = slope @ weight if ctx.needs_input_grad[0] else None
        to_a = torch.zeros_like(low)
        to_b = torch.zeros_like(narrow)
        for run in equal_runs(ctx.counts):
            if not run.each:
                continue
            down = _batched(slope, run)
            middle = _batched(to_inner, run)
            torch.bmm(down, narrow[run.clients], out=middle)
            torch.bmm(middle.mT, _batched(x, run), out=to_a[run.clients])
            torch.bmm(down.mT, _batched(inner, run), out=to_b[run.clients])
            if to_x is not None:
                _batched(to_x, run).baddbmm_(middle, low[run.clients])
        return to_x, None, None, to_a.to(b.dtype), to_b.to(b.dtype), None


def _batched(rows: Tensor, run: Run) -> Tensor:
    """Return the rows [N, width] of a run as [clients, count, width]."""
    return rows[run.rows].unflatten(0, (run.length, run.each))


def even_pays(counts: Sequence[int]) -> bool:
    """Whether a GPU gains from filling up to equally many images for every client.

    One launch then serves all clients. It does not pay where more than `MOST_FILLED` times as many
    images would be computed.
    """
    return len(counts) * max(counts) <= MOST_FILLED * sum(counts)


def filled_up(images: Tensor, counts: Sequence[int]) -> tuple[Tensor, Sequence[int], Tensor | None]:
    """Repeat each client's last image until all clients have equally many.

    For evaluation on a GPU, where many small launches cost more than the arithmetic of fillers;
    training fills up its own batches.

    Args:
        images: [B, …], client by client.
        counts: images of each client, Σ = B.

    Returns:
        The images, the counts, and the positions [B] of the real images; unchanged and None where
        filling up does not pay (see `even_pays`).
    """
    if not even_pays(counts):
        return images, counts, None
    each, steps = torch.tensor(counts), torch.arange(max(counts))
    last = (each - 1).clamp(min=0)[:, None]
    chosen = (each.cumsum(0) - each)[:, None] + steps.minimum(last)
    chosen = chosen.clamp(max=len(images) - 1).flatten().to(images.device)
    positions = (steps < each[:, None]).flatten().nonzero().flatten().to(images.device)
    return images[chosen], [max(counts)] * len(counts), positions
