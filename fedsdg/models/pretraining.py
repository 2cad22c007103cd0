"""Training a whole vision transformer on a source task, before it is frozen, and probing it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsdg.models.forward import class_tokens


class Training:
    """A run of so many optimiser steps, which can be saved and restored between two steps.

    AdamW with linear warm-up and a cosine to zero; weight decay on matrices only. Optionally a
    moving average of the weights, which becomes the model in `finish`: a ← d·a + (1 − d)·θ after
    step t with d = min(ema, (1 + t) / (10 + t)), so that it covers at most the last tenth of the
    steps.

    Args:
        model: timm's VisionTransformer with its head, on the device to train on; trained in place.
            torch's generator of that device draws the blocks left out.
        steps: optimiser steps in all; `done` counts them.
        learning_rate: its peak.
        beta2: of AdamW.
        weight_decay: of AdamW, on matrices.
        warmup_steps: steps of rising rate.
        label_smoothing: of the cross-entropy.
        clip_norm: bound on the l2 norm of all gradients together.
        bfloat16: run the forward pass under autocast.
        ema: largest decay d of the average; 0 keeps none.
    """

    def __init__(
        self,
        model: Any,
        steps: int,
        *,
        learning_rate: float,
        beta2: float,
        weight_decay: float,
        warmup_steps: int,
        label_smoothing: float,
        clip_norm: float,
        bfloat16: bool,
        ema: float = 0.0,
    ) -> None:
        self.model = model
        self.steps = steps
        self.done = 0
        self._learning_rate = learning_rate
        self._warmup_steps = warmup_steps
        self._label_smoothing = label_smoothing
        self._clip_norm = clip_norm
        self._bfloat16 = bfloat16
        self._ema = ema
        self._parameters = dict(model.named_parameters())
        self._device = next(iter(self._parameters.values())).device
        matrices = [p for p in model.parameters() if p.dim() >= 2]
        vectors = [p for p in model.parameters() if p.dim() < 2]
        groups: list[dict[str, Any]] = [
            {"params": matrices},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self._optimiser = torch.optim.AdamW(
            groups, betas=(0.9, beta2), weight_decay=weight_decay, fused=True
        )
        self._average = [p.detach().clone() for p in model.parameters()] if ema else []
        if bfloat16 and self._device.type == "cpu":
            # torch's fused attention is slow backwards in bfloat16 on a CPU.
            for block in model.blocks:
                block.attn.fused_attn = False
        model.train()

    def step(self, images: Tensor, labels: Tensor) -> float:
        """Take one optimiser step.

        Args:
            images: [B, C, H, W].
            labels: int64 [B].

        Returns:
            The loss before the step.

        Raises:
            FloatingPointError: the loss became NaN or infinite.
        """
        factor = schedule(self.done, self.steps, self._warmup_steps)
        for group in self._optimiser.param_groups:
            group["lr"] = self._learning_rate * factor
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bfloat16):
            scores = self.model.head(class_tokens(self.model, images))
        loss = F.cross_entropy(scores.float(), labels, label_smoothing=self._label_smoothing)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise FloatingPointError(
                f"pretraining: the loss is {value} at step {self.done + 1} of {self.steps}; "
                "lower learning_rate"
            )
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._parameters.values(), self._clip_norm)
        self._optimiser.step()
        self.done += 1
        if self._average:
            decay = min(self._ema, (1 + self.done) / (10 + self.done))
            values = [p.detach() for p in self._parameters.values()]
            torch._foreach_lerp_(self._average, values, 1.0 - decay)
        return value

    def finish(self) -> None:
        """Replace the weights by their average, where there is one, and leave training mode."""
        for parameter, average in zip(self._parameters.values(), self._average, strict=False):
            parameter.data.copy_(average)
        self.model.eval()

    def state(self) -> dict[str, Tensor]:
        """Return everything that later steps depend on besides their batches; not copied."""
        state = {"done": torch.tensor(self.done), "random": self._random()}
        state |= {f"model.{name}": value for name, value in self._parameters.items()}
        averages = zip(self._parameters, self._average, strict=False)
        state |= {f"average.{name}": value for name, value in averages}
        for number, entries in self._optimiser.state_dict()["state"].items():
            state |= {f"adamw.{number}.{key}": value for key, value in entries.items()}
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a result of `state`."""
        self.done = int(state["done"])
        with torch.no_grad():
            for name, value in self._parameters.items():
                value.copy_(state[f"model.{name}"])
            for name, value in zip(self._parameters, self._average, strict=False):
                value.copy_(state[f"average.{name}"])
        adamw: dict[int, dict[str, Tensor]] = {}
        for name, value in state.items():
            if name.startswith("adamw."):
                _, number, key = name.split(".")
                adamw.setdefault(int(number), {})[key] = value
        groups = self._optimiser.state_dict()["param_groups"]
        self._optimiser.load_state_dict({"state": adamw, "param_groups": groups})
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(state["random"], self._device)
        else:
            torch.set_rng_state(state["random"])

    def _random(self) -> Tensor:
        cuda = self._device.type == "cuda"
        return torch.cuda.get_rng_state(self._device) if cuda else torch.get_rng_state()


def schedule(step: int, steps: int, warmup: int) -> float:
    """Return the factor of the peak rate: linear at first, then half a cosine to 0.

    Args:
        step: number of the step, from 0 on.
        steps: steps in all.
        warmup: steps of rising rate; half of all steps at most.

    Returns:
        A number in [0, 1].
    """
    warmup = min(warmup, steps // 2)
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def shift_and_mirror(images: Tensor, shifts: Tensor, mirrored: Tensor) -> Tensor:
    """Move every image by its own shift, reflected at the border, and mirror some of them.

    Args:
        images: [B, C, S, S].
        shifts: int64 [2, B], rows down and columns right, each in [-S/8, S/8].
        mirrored: bool [B]. All three lie on one device.

    Returns:
        [B, C, S, S].
    """
    count, channels, size, _ = images.shape
    reach = max(1, size // 8)
    padded = F.pad(images, (reach,) * 4, mode="reflect")
    pixels = torch.arange(size, device=images.device)
    rows = pixels + reach - shifts[0][:, None]
    columns = pixels + reach - shifts[1][:, None]
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    image = torch.arange(count, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[None, :, None, None]
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def progress_report(
    steps: int, per_epoch: int, batch_size: int, done: int = 0
) -> Callable[[int, float], None]:
    """Return a function that shows progress: a bar on a terminal, a line per epoch elsewhere.

    Args:
        steps: steps in all.
        per_epoch: steps of an epoch.
        batch_size: images of a step.
        done: steps made before.

    Returns:
        A function of the steps made and the loss, to be called after every step.
    """
    from tqdm import tqdm

    bar = tqdm(
        desc="pretraining",
        total=steps * batch_size,
        initial=done * batch_size,
        unit="image",
        unit_scale=True,
        disable=None,  # where stderr is no terminal
    )

    def show(step: int, loss: float) -> None:
        bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
        bar.update(batch_size)
        if bar.disable and step % per_epoch == 0:
            epoch = f"epoch {step // per_epoch} of {steps // per_epoch}"
            print(f"pretraining: {epoch}, loss {loss:.3f}", file=sys.stderr, flush=True)
        if step == steps:
            bar.close()

    return show


def linear_probe(features: np.ndarray, labels: np.ndarray, order: np.ndarray) -> float:
    """Return what frozen features are worth for a task that the backbone has not seen.

    Args:
        features: [n, dim]; standardised with the mean and deviation of the fitted half.
        labels: [n].
        order: a permutation of the n samples.

    Returns:
        Accuracy of a logistic regression fitted on every other sample, tested on the rest.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from threadpoolctl import threadpool_limits

    fit, test = order[::2], order[1::2]
    # The accuracy must not depend on the number of cores.
    with threadpool_limits(1, user_api="blas"):
        probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
        probe.fit(features[fit], labels[fit])
        return float(probe.score(features[test], labels[test]))
