"""Training a whole vision transformer on a source task, before it is frozen."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsdg.models.forward import class_tokens


def train(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    steps: int,
    *,
    learning_rate: float,
    beta2: float,
    weight_decay: float,
    warmup_steps: int,
    label_smoothing: float,
    clip_norm: float,
    bfloat16: bool,
    report: Callable[[int, float], None] | None = None,
) -> None:
    """AdamW with linear warm-up and a cosine to zero, in place; weight decay on matrices only.

    Args:
        model: timm's VisionTransformer with its head.
        batches: images [B, C, H, W] and labels [B], at least `steps` of them.
        steps: optimiser steps.
        clip_norm: bound on the l2 norm of all gradients together.
        bfloat16: run the forward pass under autocast.
        report: called with the step, from 0, and its loss.

    Raises:
        FloatingPointError: the loss became NaN or infinite.
    """
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, betas=(0.9, beta2), weight_decay=weight_decay, fused=True)
    head = model.get_submodule("head")
    model.train()
    for step, (images, labels) in zip(range(steps), batches, strict=False):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate * schedule(step, steps, warmup_steps)
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            scores = head(class_tokens(model, images))
        loss = F.cross_entropy(scores.float(), labels, label_smoothing=label_smoothing)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise FloatingPointError(
                f"pretraining: the loss is {value} at step {step + 1} of {steps}; "
                "lower learning_rate"
            )
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimiser.step()
        if report is not None:
            report(step, value)
    model.eval()


def schedule(step: int, steps: int, warmup: int) -> float:
    """Factor of the peak rate: linear up over `warmup` steps, then a half cosine down to zero."""
    warmup = min(warmup, steps // 2)
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def shift_and_mirror(images: Tensor, shifts: Tensor, mirrored: Tensor) -> Tensor:
    """Every image moved by its own shift, reflected at the border, and mirrored where asked.

    Args:
        images: [B, C, S, S].
        shifts: int64 [2, B], rows down and columns right, each in [-S/8, S/8].
        mirrored: bool [B].
    """
    count, channels, size, _ = images.shape
    reach = max(1, size // 8)
    padded = F.pad(images, (reach,) * 4, mode="reflect")
    pixels = torch.arange(size)
    rows = pixels + reach - shifts[0][:, None]
    columns = pixels + reach - shifts[1][:, None]
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    image = torch.arange(count)[:, None, None, None]
    channel = torch.arange(channels)[None, :, None, None]
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def progress_report(steps: int, per_epoch: int) -> Callable[[int, float], None]:
    """Shows progress after every step: a bar on a terminal, a line per epoch elsewhere."""
    if sys.stderr.isatty():
        from tqdm import tqdm

        bar = tqdm(total=steps, desc="pretraining", unit="step")

        def show(step: int, loss: float) -> None:
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            bar.update()
            if step + 1 == steps:
                bar.close()

        return show

    def say(step: int, loss: float) -> None:
        if (step + 1) % per_epoch == 0:
            epoch = f"epoch {(step + 1) // per_epoch} of {steps // per_epoch}"
            print(f"pretraining: {epoch}, loss {loss:.3f}", file=sys.stderr, flush=True)

    return say
