"""Opening encoded images: which formats are read, and how deep their pixels are."""

from __future__ import annotations

import re

from PIL import Image, TiffImagePlugin

#: Of other formats that Pillow reads, some hold more than 8 bits a channel, which it cuts off.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
#: What Pillow raises for an image that it cannot decode.
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)

_COMMENT = re.compile(rb"#[^\r\n]*[\r\n]")
# Bit depth is the first field behind width and height in the first chunk, IHDR.
_PNG_DEPTH = 24


def require_8_bits(where: str, image: Image.Image, content: bytes) -> None:
    """Check that no channel is deeper than 8 bits, since Pillow would cut the others off.

    The bytes of the file decide: Pillow opens many deep images in a mode of 8 bits.

    Args:
        where: what names the image in an error message.
        image: the image as Pillow opened it.
        content: the bytes that it was opened from.

    Raises:
        ValueError: a channel is deeper, or the header does not say how deep it is.
    """
    try:
        bits = _bits(image, content)
    except (ValueError, LookupError) as error:
        raise ValueError(f"{where}: the image's header cannot be read; replace it") from error
    if bits > 8:
        raise ValueError(
            f"{where}: the image has {bits} bits a channel, deeper than 8 bits, of which the rest "
            "would be cut off; store it with 8 bits a channel"
        )


def _bits(image: Image.Image, content: bytes) -> int:
    if image.format == "PNG":
        return content[_PNG_DEPTH]
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        return max(image.tag_v2.get(TiffImagePlugin.BITSPERSAMPLE, (1,)))
    if image.format == "PPM":
        # Comments may be as long as they like; headers are short.
        header = _COMMENT.sub(b"", content[: 2**16]).split(None, 4)
        if header[0] in (b"P1", b"P4"):
            return 1
        # Behind magic number, width and height stands the largest value; of Pf, a scale of floats.
        return 32 if header[0] == b"Pf" else int(header[3]).bit_length()
    return 8
