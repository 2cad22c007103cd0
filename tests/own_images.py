"""A folder of small photographs, as a stranger would have them."""

from pathlib import Path

import numpy as np
from PIL import Image


def write_image(file: Path, pixels: np.ndarray) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)
    return file


PHOTO_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
_STYLES = ("art", "cartoon", "photo", "sketch")


def write_photographs(folder: Path) -> None:
    """Seven classes in four styles as CLASS/STYLE-N.jpg, in colour, of several sizes.

    A class has a bright stripe of its own, a style a brightness.
    """
    generator = np.random.default_rng(0)
    for s, style in enumerate(_STYLES):
        for c, name in enumerate(PHOTO_CLASSES):
            for number in range(10):
                height, width = generator.integers(20, 40, 2)
                pixels = generator.normal(60 + 30 * s, 12, (height, width, 3))
                rows = slice(c * height // 7, (c + 2) * height // 7)
                pixels[rows] += 70
                file = folder / name / f"{style}-{number}.jpg"
                write_image(file, pixels.clip(0, 255).astype(np.uint8))
