"""Decode images to uint8 arrays of one size, upright, opaque, and with 8 bits per channel."""

import hashlib
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import Image, ImageColor, ImageOps, UnidentifiedImageError

from fedsdg.next_data.parts import Part, encoded_images
from fedsdg.next_data.sources import Source

#: Height and width of images of several sizes where the declaration does not say.
SIZE = 64
# Raw modes such as RGB;16B (BGR;16 has 5 or 6 bits), and a PPM whose largest value is 1023 or more.
_DEEP = re.compile(r"(?<!BGR);16|'ppm\w*'.*, \d{4,}\)\)")
_FIT: dict[str, Any] = {"crop": ImageOps.fit, "pad": ImageOps.pad, "stretch": Image.Image.resize}


def read_pixels(source: Source, parts: Sequence[Part]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Decode all images of a data set, in the order of their rows.

    EXIF rotation is applied; transparent pixels are composed on ``source.background``; images of
    another size are resized bilinearly, as ``source.fit`` says.

    Args:
        source: The declaration.
        parts: The encoded images, or their paths.

    Returns:
        The images, uint8 [n, S, S] grey or [n, S, S, 3] colour; a hash [n] of each before it was
        resized; and whether each had transparent pixels, bool [n].

    Raises:
        ValueError: An image is missing, damaged, too large, deeper than 8 bits per channel or, in a
            built-in set, of another size than declared; the message names file and row.
    """
    size, channels = _common_shape(source, parts)
    background = ImageColor.getrgb(source.background)
    count = sum(part.table.num_rows for part in parts)
    images = np.empty((count, size, size, channels), dtype=np.uint8)
    hashes = np.empty(count, dtype="S16")
    transparent = np.zeros(count, dtype=bool)
    for row, (where, content) in enumerate(encoded_images(source, parts)):
        with _opened(where, content) as stored:
            image = ImageOps.exif_transpose(stored)
            if image.has_transparency_data:
                layer = image.convert("RGBA")
                transparent[row] = layer.getchannel("A").getextrema() != (255, 255)
                image = Image.alpha_composite(Image.new("RGBA", image.size, background), layer)
            image = image.convert("L" if channels == 1 else "RGB")
            hashes[row] = hashlib.blake2b(f"{image.size}".encode() + image.tobytes()).digest()
            if image.size != (size, size):
                if source.built_in:
                    raise ValueError(f"{image.width}×{image.height} pixels, not {size}×{size}")
                image = _FIT[source.fit](image, (size, size), Image.Resampling.BILINEAR)
            images[row] = np.asarray(image).reshape(size, size, channels)
    return images[..., 0] if channels == 1 else images, hashes, transparent


def _common_shape(source: Source, parts: Sequence[Part]) -> tuple[int, int]:
    """Return size and channels; reads the headers of the images where they are not declared."""
    sizes = set()
    grey = True
    if not (source.size and source.channels):
        for where, content in encoded_images(source, parts):
            with _opened(where, content) as image:
                sizes.add(image.size)
                grey = grey and image.mode in ("1", "L", "LA")
    width, height = min(sizes, default=(0, 0))
    common = width if len(sizes) == 1 and width == height else SIZE
    return source.size or common, source.channels or (1 if grey else 3)


@contextmanager
def _opened(where: str, content: bytes) -> Iterator[Image.Image]:
    """Open an image; whatever goes wrong becomes a sentence that names it."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            # Pillow cuts these to 8 bits, unless its mode is I or F.
            deep = _DEEP.search(str(getattr(image, "tile", "")))
            if deep or image.mode.startswith(("I", "F")):
                raise ValueError("it has more than 8 bits per channel, such as 16")
            yield image
    except Exception as error:  # Decoders raise many unrelated types on damaged files.
        problem = str(error).partition("\n")[0]
        if isinstance(error, UnidentifiedImageError):
            problem = "it is no image that Pillow can read" if content else "it is missing or empty"
        raise ValueError(f"{where}: the image cannot be used ({problem}); replace it") from error
