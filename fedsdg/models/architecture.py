"""The shape of a backbone: what must be known to build it, adapt it and feed it images."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """A vision transformer with a class token, in timm's terms.

    Attributes:
        image_size: side of the square images, pixels.
        patch_size: side of a patch, pixels; divides `image_size`.
        channels: 1 grey, 3 colour.
        dim: width of a token; `heads` divides it.
        depth: number of blocks L.
        heads: attention heads per block.
        mean, std: per channel, of pixel values in [0, 1]; images are fed as (x - mean) / std.
        timm_name: hub name when the model came from timm, otherwise None (built from the numbers).
        mlp_ratio: hidden width of the feed-forward layers over `dim`.

    Raises:
        ValueError: the numbers contradict each other.
    """

    image_size: int
    patch_size: int
    channels: int
    dim: int
    depth: int
    heads: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    timm_name: str | None = None
    mlp_ratio: float = 4.0

    def __post_init__(self) -> None:
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
