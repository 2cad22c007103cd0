"""From stored pixels to what a backbone takes: size, channels, normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# ITU-R BT.601, the weights of PIL's conversion to grey; they sum to 1, so grey stays grey.
LUMA = (0.299, 0.587, 0.114)


def prepare(
    images: np.ndarray,
    *,
    size: int,
    channels: int,
    mean: Sequence[float],
    std: Sequence[float],
    chunk: int = 256,
) -> np.ndarray:
    """Scale to [0, 1], resize, convert to the channels asked for, then (x − mean) / std.

    images: uint8 [n, H, H] grey or [n, H, H, 3]. Returns float32 [n, channels, size, size].
    ``mean`` and ``std`` have one entry per output channel. Grey becomes RGB with equal channels,
    RGB becomes luma. Resizing is bilinear with antialiasing, and left out where the size is right.
    Works ``chunk`` images at a time, so that the result is the only large array.

    Raises ValueError for images of another shape or type, and for unusable mean, std or size.
    """
    import torch
    from torch.nn.functional import interpolate

    colour = images.ndim == 4 and images.shape[3] == 3
    if images.dtype != np.uint8 or not (colour or images.ndim == 3):
        raise ValueError(
            "images must be uint8 [n, H, W] or [n, H, W, 3], "
            f"not {images.dtype} {list(images.shape)}"
        )
    if images.shape[1] != images.shape[2]:
        raise ValueError(f"images must be square, not {images.shape[1]}×{images.shape[2]}")
    if channels not in (1, 3):
        raise ValueError(f"channels must be 1 or 3, got {channels}")
    if size < 1 or chunk < 1:
        raise ValueError(f"size and chunk must be at least 1, got {size} and {chunk}")
    if len(mean) != channels or len(std) != channels:
        raise ValueError(
            f"mean and std must have one entry per channel ({channels}), "
            f"got {len(mean)} and {len(std)}"
        )
    if not all(s > 0 for s in std):
        raise ValueError(f"std must be above 0, got {tuple(std)}")
    shift = torch.tensor(mean, dtype=torch.float32).view(1, channels, 1, 1)
    scale = torch.tensor(std, dtype=torch.float32).view(1, channels, 1, 1)
    luma = torch.tensor(LUMA, dtype=torch.float32).view(1, 3, 1, 1)
    out = np.empty((len(images), channels, size, size), dtype=np.float32)
    for start in range(0, len(images), chunk):
        part = torch.from_numpy(images[start : start + chunk].astype(np.float32) / 255.0)
        part = part.permute(0, 3, 1, 2) if colour else part.unsqueeze(1)
        if colour and channels == 1:
            part = (part * luma).sum(dim=1, keepdim=True)
        if images.shape[1] != size:
            part = interpolate(
                part, size=(size, size), mode="bilinear", align_corners=False, antialias=True
            )
        # A grey part broadcasts against three means.
        out[start : start + chunk] = ((part - shift) / scale).numpy()
    return out


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images as they are stored, with what ``prepare`` makes of them for a model.

    ``stored``: uint8 [n, H, H] grey or [n, H, H, 3]; ``size``, ``channels``, ``mean``, ``std``: as
    in ``prepare``.
    """

    stored: np.ndarray
    size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def prepared(self, images: np.ndarray) -> np.ndarray:
        """float32 [n, channels, size, size] of images of the kind that is stored."""
        return prepare(images, size=self.size, channels=self.channels, mean=self.mean, std=self.std)
