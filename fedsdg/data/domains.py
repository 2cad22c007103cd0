"""Data sets whose samples come from several domains: one task, seen in different ways.

``digits_domains``: the embedded digits, of which a quarter each is left as it is, turned, drawn
with thick strokes, and noisy. Every sample has its one domain for good: it is drawn from a
generator with a fixed seed and depends on no run. ``mnist_usps``: both sets of handwritten digits.

Domains are numbered in the order of ``DatasetSpec.domains``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from fedsdg.data.datasets import DATASETS, ImageData, image_data, load_dataset

ROTATION = 60.0  # degrees, counter-clockwise; below 90, so that no digit becomes another
THICKER = 1.0  # of 4 sub-pixels per pixel, on each side of a stroke
NOISE = 0.25  # standard deviation, in units of full ink
_FINE = 4  # sub-pixels per pixel and axis
_SEED = 8


def digits_domains() -> ImageData:
    """The digits, each in one of four domains; every domain holds a quarter of every class."""
    plain = load_dataset("digits")
    generator = np.random.Generator(np.random.PCG64(_SEED))
    domain = spread_evenly(plain.labels, 4, generator)
    images = plain.images.copy()
    # Noise is drawn for every sample, so that no sample's pixels depend on another's domain.
    noise = generator.standard_normal(images.shape)
    for d, change in ((1, _rotated), (2, _thick)):
        images[domain == d] = change(plain.images[domain == d])
    noisy = domain == 3
    images[noisy] = _ink(plain.images[noisy] / 255.0 + NOISE * noise[noisy])
    return image_data("digits_domains", images, plain.labels, plain.num_classes, None, domain)


def mnist_usps() -> ImageData:
    """MNIST and USPS (enlarged from 16 to 28 pixels, bilinear); both their test sets are kept.

    Raises FileNotFoundError when one of them cannot be found.
    """
    sets = [load_dataset("mnist"), load_dataset("usps")]
    size = DATASETS["mnist_usps"].size
    images = np.concatenate([_resized(one.images, size) for one in sets])
    labels = np.concatenate([one.labels for one in sets])
    official_test = np.concatenate([one.official_test for one in sets])
    domain = np.repeat(np.arange(len(sets)), [len(one.labels) for one in sets])
    # Training samples first, then the test sets.
    order = np.argsort(official_test, kind="stable")
    return image_data(
        "mnist_usps", images[order], labels[order], 10, official_test[order], domain[order]
    )


def spread_evenly(labels: np.ndarray, parts: int, generator: np.random.Generator) -> np.ndarray:
    """A part [n] for every sample; the sizes of two parts differ by at most 1 in every class."""
    part = np.empty(len(labels), dtype=np.int64)
    for c in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == c))
        part[members] = generator.permutation(parts)[np.arange(len(members)) % parts]
    return part


def _rotated(images: np.ndarray) -> np.ndarray:
    from scipy.ndimage import rotate

    return _ink(rotate(images / 255.0, ROTATION, axes=(2, 1), reshape=False, order=1))


def _thick(images: np.ndarray) -> np.ndarray:
    """As if drawn with a wider pen: ink on sub-pixels, widened, counted in blocks again."""
    from scipy.ndimage import distance_transform_edt, zoom

    n, height, width = images.shape
    wide = np.empty((n, height, width))
    for image, out in zip(images / 255.0, wide, strict=True):
        fine = zoom(image, _FINE, order=1, grid_mode=True, mode="nearest") > 0.5
        pen = distance_transform_edt(~fine) <= THICKER
        out[:] = pen.reshape(height, _FINE, width, _FINE).mean(axis=(1, 3))
    return _ink(wide)


def _ink(share: np.ndarray) -> np.ndarray:
    return np.rint(np.clip(share, 0.0, 1.0) * 255.0).astype(np.uint8)


def _resized(images: np.ndarray, size: int) -> np.ndarray:
    if images.shape[1] == size:
        return images
    from PIL import Image

    result = np.empty((len(images), size, size), dtype=np.uint8)
    for image, out in zip(images, result, strict=True):
        enlarged = Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR)
        out[:] = np.asarray(enlarged)
    return result


#: How each data set of several domains is made.
MAKERS: Mapping[str, Callable[[], ImageData]] = MappingProxyType(
    {"digits_domains": digits_domains, "mnist_usps": mnist_usps}
)
