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
from fedsdg.data.transforms import noisy, rotated, thick

ROTATION = 60.0  # degrees, counter-clockwise
_SEED = 8


def digits_domains() -> ImageData:
    """The digits, each in one of four domains; every domain holds a quarter of every class."""
    plain = load_dataset("digits")
    generator = np.random.Generator(np.random.PCG64(_SEED))
    domain = spread_evenly(plain.labels, 4, generator)
    images = plain.images.copy()
    # Noise is drawn for every sample, so that no sample's pixels depend on another's domain.
    noise = generator.standard_normal(images.shape)
    images[domain == 1] = rotated(plain.images[domain == 1], ROTATION)
    images[domain == 2] = thick(plain.images[domain == 2])
    images[domain == 3] = noisy(plain.images[domain == 3], noise[domain == 3])
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
