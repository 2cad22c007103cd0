"""A data set made by a function.

Use it with ``datasets: [checks]``. Image files need no code: docs/own-data.md.
"""

import numpy as np

from fedsdg.data.datasets import ImageData


def checks():
    """Return 400 images of 8 x 8 pixels in two classes: plain, or with stripes."""
    labels = np.arange(400) % 2
    images = np.random.default_rng(0).integers(0, 99, (400, 8, 8)).astype(np.uint8)
    images[labels == 1, ::2] += 120
    return ImageData("checks", images, labels, num_classes=2)


DATASETS = {"checks": checks}
