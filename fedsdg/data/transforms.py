"""What makes images look otherwise without another meaning: turned, thicker, noisy, inverted.

All take and give uint8, [n, H, W] grey or [n, H, W, 3] (thick strokes: grey alone), and work on
ink, the share x/255 of a pixel's range. Domains of a data set and clients that see other images
are both made of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

ROTATION = (15.0, 60.0)  # degrees; below 90, so that no digit becomes another
THICKER = 1.0  # of 4 sub-pixels per pixel, on each side of a stroke
NOISE = 0.25  # standard deviation, in units of full ink
_FINE = 4  # sub-pixels per pixel and axis


def inverted(images: np.ndarray) -> np.ndarray:
    """Ink where there was none: 255 − x."""
    return 255 - images


def rotated(images: np.ndarray, degrees: float) -> np.ndarray:
    """Turned about the centre, counter-clockwise for ``degrees`` > 0, bilinear; corners are 0."""
    from scipy.ndimage import rotate

    return _pixels(rotate(images / 255.0, degrees, axes=(2, 1), reshape=False, order=1))


def noisy(images: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """With ``NOISE`` · noise added to the ink, cut off at 0 and 1; ``noise`` has its shape."""
    return _pixels(images / 255.0 + NOISE * noise)


def thick(images: np.ndarray) -> np.ndarray:
    """As if drawn with a wider pen: ink on sub-pixels, widened, counted in blocks again."""
    from scipy.ndimage import distance_transform_edt, zoom

    n, height, width = images.shape
    wide = np.empty((n, height, width))
    for image, out in zip(images / 255.0, wide, strict=True):
        fine = zoom(image, _FINE, order=1, grid_mode=True, mode="nearest") > 0.5
        pen = distance_transform_edt(~fine) <= THICKER
        out[:] = pen.reshape(height, _FINE, width, _FINE).mean(axis=(1, 3))
    return _pixels(wide)


def _pixels(ink: np.ndarray) -> np.ndarray:
    return np.rint(np.clip(ink, 0.0, 1.0) * 255.0).astype(np.uint8)


@dataclass(frozen=True)
class View:
    """How somebody sees images: by ``kind`` invert, rotate or noise.

    ``draw(*keys)``: the generator of this view at an address. The angle is ``degrees``, or drawn
    at address 0, uniform in ±[15, 60] degrees; the noise of image i is drawn at (1, i), so that an
    image has the same whenever it is seen.
    """

    kind: str
    draw: Callable[..., np.random.Generator]
    degrees: float | None = None

    def angle(self) -> float:
        """Degrees by which images are turned."""
        if self.degrees is not None:
            return self.degrees
        generator = self.draw(0)
        size = generator.uniform(*ROTATION)
        return float(generator.choice((-1.0, 1.0)) * size)

    def __call__(self, images: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """The images [n, …] with these sample numbers [n] as they are seen."""
        if self.kind == "invert":
            return inverted(images)
        if self.kind == "rotate":
            return rotated(images, self.angle())
        if self.kind != "noise":
            raise ValueError(f"there is no view {self.kind!r}; use invert, rotate or noise")
        noise = [self.draw(1, int(i)).standard_normal(images.shape[1:]) for i in numbers]
        return noisy(images, np.array(noise).reshape(images.shape))
