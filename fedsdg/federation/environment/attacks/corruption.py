"""Damage on the way."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from fedsdg.federation.environment.attacks.attack import LARGEST, Scene, UpdateAttack
from fedsdg.parts import Range, part


@part
class Corruption(UpdateAttack):
    """Exactly round(entries · d) numbers of what each attacker sends (θ_k) arrive damaged.

    Noise: they become N(0, (scale · rms(θ_k))²); always finite. Bits: one uniformly drawn bit of
    each is flipped; of an exponent it may make a number huge, or no number at all, which only a
    server that checks what arrives survives (the chapter on aggregation).
    """

    entries: Annotated[float, Range(0, 1)] = 0.01
    "share of the parameters that are damaged on the way"
    damage: Literal["noise", "bits"] = "noise"
    "`noise`, or `bits`: one flipped bit each, which may make a number huge or no number at all"
    scale: Annotated[float, Range(0, LARGEST)] = 1.0
    "size of the noise, in root mean squares of the parameters"

    def forge(self, scene: Scene) -> Tensor:
        forged = scene.updates[scene.rows]
        starts = scene.view.start.to(forged)[scene.rows]
        d = forged.shape[1]
        for update, start in zip(forged, starts, strict=True):
            chosen = scene.generator.permutation(d)[: round(self.entries * d)]
            places = torch.from_numpy(chosen).to(forged.device)
            sent = start + update
            arrives = _DAMAGES[self.damage](sent, places, self.scale, scene)
            update[places] = arrives - start[places]
        return forged


def _noise(sent: Tensor, places: Tensor, scale: float, scene: Scene) -> Tensor:
    size = scale * sent.double().square().mean().sqrt()
    return (size * scene.normal(len(places))).to(sent.dtype)


def _flipped_bits(sent: Tensor, places: Tensor, scale: float, scene: Scene) -> Tensor:
    words = sent[places].cpu().numpy()
    kind = np.dtype(f"u{words.itemsize}")
    bits = scene.generator.integers(8 * words.itemsize, size=len(words)).astype(kind)
    flipped = words.view(kind) ^ (np.ones_like(bits) << bits)
    return torch.from_numpy(flipped.view(words.dtype)).to(sent.device)


_DAMAGES = {"noise": _noise, "bits": _flipped_bits}
