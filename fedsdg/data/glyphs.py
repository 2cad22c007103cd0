"""Letters drawn from fonts, to pretrain a backbone where no real images are at hand.

The 52 Latin letters in matplotlib's bundled DejaVu faces, distorted at random and made the way
scikit-learn's digits were: a bitmap of ink on 32×32 pixels that fills its box, then the number of
ink pixels in every 4×4 block. No digit is among them, so the digits stay unseen.
Letters whose two cases differ in size alone (as c and C) look alike here; the labels keep them
apart, so the source task cannot be learnt to 100 %.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL import ImageFont

LETTERS = string.ascii_lowercase + string.ascii_uppercase
LETTER_FONTS = (
    "DejaVuSans.ttf",
    "DejaVuSans-Bold.ttf",
    "DejaVuSans-Oblique.ttf",
    "DejaVuSans-BoldOblique.ttf",
    "DejaVuSansMono.ttf",
    "DejaVuSansMono-Bold.ttf",
    "DejaVuSansMono-Oblique.ttf",
    "DejaVuSansMono-BoldOblique.ttf",
    "DejaVuSerif.ttf",
    "DejaVuSerif-Bold.ttf",
    "DejaVuSerif-Italic.ttf",
    "DejaVuSerif-BoldItalic.ttf",
)
_BLOCK = 4  # ink is counted in blocks of 4×4 pixels
_MASTER = 64  # pixels of the undistorted letters
_REACH = 0.95  # half the side of the box that a letter fills, in [-1, 1]
_POINTS = 160  # size of the faces before letters are fitted into their box
_WAVES = 4  # control points per axis of the smooth displacement


def render_letters(
    count: int,
    generator: np.random.Generator,
    size: int = 8,
    fonts: Sequence[str] = LETTER_FONTS,
    *,
    rotation: float = 12.0,
    shear: float = 0.15,
    scale: float = 0.1,
    shift: float = 0.05,
    wobble: float = 0.06,
    stroke: float = 0.2,
    stroke_spread: float = 0.2,
    chunk: int = 4096,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw ``count`` letters: uint8 images [count, size, size], int64 labels [count] in 0 … 51.

    Bright ink (up to 255) on a background of 0. Letter and font are uniform. The distortions, in
    units of half the image where not said otherwise, are normal with these standard deviations:
    ``rotation`` (degrees), ``shear``, ``scale`` (of the log, per axis), ``shift`` and ``wobble``
    (of a smooth displacement, as of a hand). The thickest stroke of every letter, bold or not,
    gets the half-width ``stroke`` · exp(``stroke_spread`` · N(0, 1)).
    Everything is drawn from ``generator`` first, so ``chunk`` changes no pixel.

    Raises ValueError for a count or size below 1 and for a font that matplotlib does not ship.
    """
    import torch
    from torch.nn.functional import avg_pool2d, grid_sample, interpolate

    if count < 1 or size < 1:
        raise ValueError(f"count and size must be at least 1, got {count} and {size}")
    masters = torch.from_numpy(_masters(tuple(fonts)))
    labels = generator.integers(len(LETTERS), size=count)
    faces = generator.integers(len(fonts), size=count)
    affine = torch.from_numpy(_affine(count, generator, rotation, shear, scale, shift))
    waves = torch.from_numpy(
        wobble * generator.standard_normal((count, 2, _WAVES, _WAVES), dtype=np.float32)
    )
    width = stroke * np.exp(
        stroke_spread * generator.standard_normal(count, dtype=np.float32), dtype=np.float32
    )
    level = torch.from_numpy(width) - masters.amax(dim=(2, 3))[faces, labels]
    fine = _BLOCK * size
    centres = (torch.arange(fine, dtype=torch.float32) + 0.5) * (2.0 / fine) - 1.0
    plane = torch.stack(
        [
            centres.expand(fine, fine),
            centres.unsqueeze(1).expand(fine, fine),
            torch.ones(fine, fine),
        ]
    ).view(3, fine * fine)
    images = np.empty((count, size, size), dtype=np.uint8)
    for start in range(0, count, chunk):
        part = slice(start, min(start + chunk, count))
        letters = masters[faces[part], labels[part]].unsqueeze(1)
        grid = (affine[part] @ plane).view(-1, 2, fine, fine)
        grid += interpolate(waves[part], size=(fine, fine), mode="bicubic", align_corners=True)
        distance = grid_sample(
            letters, grid.permute(0, 2, 3, 1), padding_mode="border", align_corners=False
        )
        ink = (distance + level[part].view(-1, 1, 1, 1) > 0).to(torch.float32)
        blocks = avg_pool2d(ink, _BLOCK).squeeze(1)
        images[part] = (blocks * 255.0).round().to(torch.uint8).numpy()
    return images, labels.astype(np.int64)


def _affine(
    count: int,
    generator: np.random.Generator,
    rotation: float,
    shear: float,
    scale: float,
    shift: float,
) -> np.ndarray:
    """Maps float32 [count, 2, 3] from places in the image to places in the letter's master."""
    angle = np.deg2rad(rotation) * generator.standard_normal(count)
    slant = shear * generator.standard_normal(count)
    stretch = np.exp(scale * generator.standard_normal((count, 2)))
    cos, sin = np.cos(angle), np.sin(angle)
    turn = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)
    lean = np.tile(np.eye(2), (count, 1, 1))
    lean[:, 0, 1] = slant
    linear = (turn @ lean) * stretch[:, :, None]
    offset = shift * generator.standard_normal((count, 2, 1))
    return np.concatenate([linear, offset], axis=-1).astype(np.float32)


@functools.lru_cache(maxsize=4)
def _masters(fonts: tuple[str, ...]) -> np.ndarray:
    """Signed distances to the outline, float32 [fonts, 52, 64, 64], positive inside the ink.

    In units of half the image. A distance field, unlike a bitmap, can be sampled smoothly and
    thresholded at another level, which makes strokes thicker or thinner.
    """
    from scipy.ndimage import distance_transform_edt

    fields = np.empty((len(fonts), len(LETTERS), _MASTER, _MASTER), dtype=np.float32)
    for f, font in enumerate(fonts):
        for c, letter in enumerate(LETTERS):
            ink = _bitmap(font, letter)
            inside, outside = distance_transform_edt(ink), distance_transform_edt(~ink)
            fields[f, c] = (inside - outside) * (2.0 / _MASTER)
    return fields


def _bitmap(font: str, letter: str) -> np.ndarray:
    """One letter in a box, bool [64, 64]: it fills the height, and at most 5/8 of the width."""
    from PIL import Image, ImageDraw

    canvas = Image.new("L", (3 * _POINTS, 3 * _POINTS), 0)
    ImageDraw.Draw(canvas).text((_POINTS, _POINTS), letter, font=_face(font), fill=255)
    # Cropped to the ink itself: a face's own box has margins that differ left and right.
    canvas = canvas.point([0] * 128 + [255] * 128)
    canvas = canvas.crop(canvas.getbbox())
    height = round(_MASTER * _REACH)
    # A narrow letter (i, l) keeps its shape; a wide one (m, W) is squeezed like a written digit.
    width = min(round(canvas.width * height / canvas.height), round(0.625 * height))
    small = canvas.resize((max(width, 2), height), Image.Resampling.BOX)
    box = np.zeros((_MASTER, _MASTER), dtype=bool)
    row, column = (_MASTER - height) // 2, (_MASTER - small.width) // 2
    box[row : row + height, column : column + small.width] = np.asarray(small) >= 128
    return box


@functools.cache
def _face(font: str) -> ImageFont.FreeTypeFont:
    import matplotlib
    from PIL import ImageFont

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / font
    if not path.is_file():
        raise ValueError(
            f"matplotlib ships no font {font!r}: choose among {', '.join(LETTER_FONTS)}"
        )
    return ImageFont.truetype(str(path), _POINTS)
