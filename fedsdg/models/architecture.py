"""Shapes of the networks: everything needed to build one, to adapt it, and to prepare its images.

Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """A vision transformer with a class token, in timm's terms.

    Pixel values x in [0, 1] enter the network as (x - mean) / std.

    Raises:
        ValueError: the numbers contradict each other.
    """

    image_size: int
    "side of the square images, in pixels"
    patch_size: int
    "side of a patch, in pixels; divides `image_size`"
    channels: int
    "1 for grey images, 3 for colour"
    dim: int
    "width of a token; a multiple of `heads`"
    depth: int
    "number of blocks L"
    heads: int
    "attention heads of a block"
    mean: tuple[float, ...]
    "subtracted from each channel"
    std: tuple[float, ...]
    "each channel is divided by it"
    timm_name: str | None = None
    "timm's name of the model, or None for a model built from these numbers"
    mlp_ratio: float = 4.0
    "hidden width of the feed-forward layers over `dim`"

    def __post_init__(self) -> None:
        """Check the numbers."""
        object.__setattr__(self, "mean", tuple(float(value) for value in self.mean))
        object.__setattr__(self, "std", tuple(float(value) for value in self.std))
        sizes = (self.image_size, self.patch_size, self.channels, self.dim, self.depth, self.heads)
        if min(sizes) < 1:
            raise ValueError(f"every size of an architecture must be at least 1: {self}")
        if self.image_size % self.patch_size:
            raise ValueError(
                f"patch_size {self.patch_size} must divide image_size {self.image_size}"
            )
        if self.dim % self.heads:
            raise ValueError(f"heads {self.heads} must divide dim {self.dim}")
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(
                f"mean and std need one number per channel ({self.channels}): "
                f"{self.mean}, {self.std}"
            )
        if not all(value > 0 for value in self.std):
            raise ValueError(f"every std must be positive: {self.std}")

    @property
    def hidden(self) -> int:
        """Hidden width of the feed-forward layers."""
        return int(self.dim * self.mlp_ratio)


@dataclass(frozen=True)
class CnnArchitecture:
    """Square images for the small CNN.

    Pixel values x in [0, 1] enter the network as (x - 0.5) / 0.5. The map is fixed, so nothing is
    learned from anybody's images beforehand.

    Raises:
        ValueError: the images are too small for two poolings.
    """

    image_size: int
    "side, in pixels"
    channels: int
    "1 for grey images, 3 for colour"

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.image_size < 4 or self.channels < 1:
            raise ValueError(
                f"the small CNN halves its images twice and needs at least 4 x 4 pixels and one "
                f"channel, got {self.image_size} x {self.image_size} and {self.channels}"
            )

    @property
    def mean(self) -> tuple[float, ...]:
        """Subtracted from each channel."""
        return (0.5,) * self.channels

    @property
    def std(self) -> tuple[float, ...]:
        """Each channel is divided by it."""
        return (0.5,) * self.channels
