"""Decode images to uint8 arrays of one size, upright, opaque, and with 8 bits per channel."""

import hashlib
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from fedsdg.data.rows import Rows, content
from fedsdg.data.sources import Source

# Raw modes such as RGB;16B (BGR;16 has 5 or 6 bits), and a PPM whose largest value is 1023 or more.
_DEEP = re.compile(r"(?<!BGR);16|'ppm\w*'.*, \d{4,}\)\)")
_FIT: dict[str, Any] = {"crop": ImageOps.fit, "pad": ImageOps.pad, "stretch": Image.Image.resize}


def read_pixels(source: Source, rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Decode all images of a data set.

    EXIF rotation is applied; transparent pixels are composed on ``source.background``; images of
    another size are resized bilinearly, as ``source.fit`` says.

    Args:
        source: The declaration.
        rows: The encoded images.

    Returns:
        The images, uint8 [n, S, S] grey or [n, S, S, 3] colour; a hash [n] of each before it was
        resized, equal for equal images; and whether each had transparent pixels, bool [n].

    Raises:
        ValueError: An image is missing, damaged, too large, deeper than 8 bits per channel or, in a
            built-in set, of another size than declared; the message names file and row.
    """
    size, channels = _common_shape(source, rows)
    images = np.empty((len(rows.images), size, size, channels), dtype=np.uint8)
    hashes = np.empty(len(images), dtype="S16")
    transparent = np.zeros(len(images), dtype=bool)
    for row, where in enumerate(rows.where):
        with _opened(where, rows.images[row]) as stored:
            image = ImageOps.exif_transpose(stored)
            if image.has_transparency_data:
                layer = image.convert("RGBA")
                transparent[row] = layer.getchannel("A").getextrema() != (255, 255)
                image = Image.new("RGBA", image.size, source.background)
                image.alpha_composite(layer)
            image = image.convert("L" if channels == 1 else "RGB")
            pixels = f"{image.size}".encode() + image.tobytes()
            hashes[row] = hashlib.blake2b(pixels, digest_size=16).digest()
            if image.size != (size, size):
                if source.built_in:
                    raise ValueError(f"{image.width}×{image.height} pixels, not {size}×{size}")
                image = _FIT[source.fit](image, (size, size), Image.Resampling.BILINEAR)
            images[row] = np.asarray(image).reshape(size, size, channels)
    return images[..., 0] if channels == 1 else images, hashes, transparent


def _common_shape(source: Source, rows: Rows) -> tuple[int, int]:
    """Return size and channels; reads the headers of the images if they are not declared."""
    sizes = set()
    grey = True
    if not (source.size and source.channels):
        for where, stored in zip(rows.where, rows.images, strict=True):
            with _opened(where, stored) as image:
                sizes.add(image.size)
                grey = grey and image.mode in ("1", "L", "LA")
    width, height = min(sizes, default=(0, 0))
    common = width if len(sizes) == 1 and width == height else 64
    return source.size or common, source.channels or (1 if grey else 3)


@contextmanager
def _opened(where: str, stored: Any) -> Iterator[Image.Image]:
    """Open an image; whatever goes wrong becomes a sentence that names it."""
    try:
        with Image.open(io.BytesIO(content(stored))) as image:
            # Pillow cuts these to 8 bits, unless its mode is I or F.
            if _DEEP.search(str(getattr(image, "tile", ""))) or image.mode[0] in "IF":
                raise ValueError("it has more than 8 bits per channel, such as 16")
            yield image
    except Exception as error:  # Decoders raise many unrelated types on damaged files.
        problem = str(error).partition("\n")[0]
        if isinstance(error, UnidentifiedImageError):
            problem = "it is empty, or no image that Pillow can read"
        raise ValueError(f"{where}: the image cannot be used ({problem}); replace it") from error
