"""Floating-point operations: how many a piece of work takes, and how fast they are done here."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from benchmarks.timing import Work
from fedsdg.models import attention

SIDES = {"cpu": 1024, "cuda": 8192}
"""Of the square matrices whose product tells the machine's rate; a GPU is busy with large ones."""


_aten = torch.ops.aten
# torch itself counts the fused attention of GPUs only. Tensors come as their shapes.
_FUSED = {
    _aten._scaled_dot_product_flash_attention_for_cpu: (
        lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value)
    ),
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda slope, query, key, value, *_, **__: sdpa_backward_flop_count(
            slope, query, key, value
        )
    ),
}


def operations(work: Work) -> int:
    """Additions and multiplications of all products in one call, counted as they are dispatched.

    Kernels for the attention of few tokens are not dispatched; torch does the same instead.
    """
    compiled, attention.COMPILED = attention.COMPILED, 0
    try:
        with FlopCounterMode(display=False, custom_mapping=_FUSED) as counter:
            work()
    finally:
        attention.COMPILED = compiled
    return counter.get_total_flops()


def product(precision: str, device: str = "cpu") -> tuple[Work, int]:
    """A dense product of two square matrices, and its operations: the rate to measure against."""
    dtype = getattr(torch, precision)
    side = SIDES[device]
    generator = torch.Generator(device).manual_seed(0)
    a, b = torch.randn(2, side, side, generator=generator, device=device).to(dtype).unbind()
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out), 2 * side**3
