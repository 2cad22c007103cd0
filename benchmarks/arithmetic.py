"""Floating-point operations: how many a piece of work takes, and how fast they are done here."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from benchmarks.timing import Work, seconds
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


def peak(steps: int = 1_000_000, attempts: int = 10) -> float:
    """Operations a second of fused products and sums in registers: what one core can do in float32.

    Eight sums of sixteen numbers go on side by side, as many as hide the time that one takes with
    AVX-512; with AVX2 they do not fit into the registers, and the rate is too low. The best of some
    attempts, by the processor's time.
    """
    from fedsdg.compiling import compiled
    from fedsdg.models.fast.vectors import LANES, address, fused, load, splat, store

    def sums(steps: int, numbers: Any) -> None:
        at = address(numbers)
        x, y = splat(numbers[0]), splat(numbers[1])
        a, b, c, d = load(at), load(at + 64), load(at + 128), load(at + 192)
        e, f, g, h = load(at + 256), load(at + 320), load(at + 384), load(at + 448)
        for _ in range(steps):
            a, b, c, d = fused(a, x, y), fused(b, x, y), fused(c, x, y), fused(d, x, y)
            e, f, g, h = fused(e, x, y), fused(f, x, y), fused(g, x, y), fused(h, x, y)
        for row, vector in enumerate((a, b, c, d, e, f, g, h)):
            store(at + 64 * row, vector)

    work, chains = compiled(sums, relaxed=False), 8
    # Different starts: equal sums would be computed once.
    numbers = np.linspace(0.1, 0.9, chains * LANES).astype(np.float32)
    work(1, numbers)
    best = min(seconds(lambda: work(steps, numbers), time.process_time) for _ in range(attempts))
    return 2 * chains * LANES * steps / best
