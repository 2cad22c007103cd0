"""Folders and parquet files of small real images, as a stranger would have them."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

ENCODED = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def encoded(pixels: np.ndarray, form: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form)
    return buffer.getvalue()


def write_image(file: Path, pixels: np.ndarray) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)
    return file


def write_table(file: Path, images: list[np.ndarray], **columns: object) -> Path:
    """A parquet file with a column ``image`` in the hub's layout, and further columns."""
    file.parent.mkdir(parents=True, exist_ok=True)
    cells = [{"bytes": encoded(pixels), "path": None} for pixels in images]
    named = {name: pa.array(values) for name, values in columns.items()}
    pq.write_table(pa.table({"image": pa.array(cells, ENCODED), **named}), file)
    return file


def stamped(number: int, size: int = 8, colour: bool = False) -> np.ndarray:
    """An image that says which one it is: its pixels are all ``number``."""
    return np.full((size, size, 3) if colour else (size, size), number, dtype=np.uint8)


PHOTO_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
_STYLES = ("art", "cartoon", "photo", "sketch")


def write_photographs(folder: Path, each: int = 10, seed: int = 0) -> None:
    """Seven classes in four styles as CLASS/STYLE-N.jpg, in colour, of several sizes.

    A class has a bright stripe of its own, a style a brightness.
    """
    generator = np.random.default_rng(seed)
    for s, style in enumerate(_STYLES):
        for c, name in enumerate(PHOTO_CLASSES):
            for number in range(each):
                height, width = generator.integers(20, 40, 2)
                pixels = generator.normal(60 + 30 * s, 12, (height, width, 3))
                rows = slice(c * height // 7, (c + 2) * height // 7)
                pixels[rows] += 70
                file = folder / name / f"{style}-{number}.jpg"
                write_image(file, pixels.clip(0, 255).astype(np.uint8))
