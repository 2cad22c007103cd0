"""Views: the same images inverted, rotated or noisy.

Images are uint8 [n, H, W] grey or [n, H, W, 3] colour; computations use x / 255.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

#: Degrees of rotation; below 90, so that no digit becomes another one.
ROTATION = (15.0, 60.0)
#: Standard deviation of the noise, in units of 255.
NOISE = 0.25


@dataclass(frozen=True)
class View:
    """How a client sees images."""

    kind: str
    "invert (255 − x), rotate (bilinear, corners become 0) or noise (cut off at 0 and 255)"
    draw: Callable[..., np.random.Generator]
    "returns the generator of this view at an address of integers"
    degrees: float | None = None
    "angle of rotate, counter-clockwise; None: drawn at address 0, uniform in ±[15, 60] degrees"

    def angle(self) -> float:
        """Return the angle by which images are rotated, in degrees."""
        if self.degrees is not None:
            return self.degrees
        generator = self.draw(0)
        size = generator.uniform(*ROTATION)
        return float(generator.choice((-1.0, 1.0)) * size)

    def __call__(self, images: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return images as the client sees them.

        Args:
            images: uint8 [n, …].
            numbers: int64 [n], their sample numbers. The noise of sample i is drawn at address
                (1, i), so that it is the same whenever the image is seen.
        """
        if self.kind == "invert":
            return 255 - images
        if self.kind == "rotate":
            from scipy.ndimage import rotate

            values = rotate(images / 255.0, self.angle(), axes=(2, 1), reshape=False, order=1)
        else:
            noise = [self.draw(1, int(i)).standard_normal(images.shape[1:]) for i in numbers]
            values = images / 255.0 + NOISE * np.array(noise).reshape(images.shape)
        return np.rint(np.clip(values, 0.0, 1.0) * 255.0).astype(np.uint8)
