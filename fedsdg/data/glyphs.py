"""Letters drawn from fonts: a source task that needs no data, to pretrain a backbone.

The 52 Latin letters in matplotlib's bundled DejaVu fonts, distorted at random and made as
scikit-learn's digits were: a bitmap of ink on 32×32 pixels that fills its box, then the number of
ink pixels in every 4×4 block. There are no digits, so those stay unseen. Letters whose cases differ
in size only (c and C) look the same but have two labels, so no model reaches 100 %.
"""

import functools
import string

import numpy as np

LETTERS = string.ascii_lowercase + string.ascii_uppercase
_SLANTED = {"Sans": "Oblique", "SansMono": "Oblique", "Serif": "Italic"}
#: Files of matplotlib's own fonts.
FONTS = tuple(
    f"DejaVu{family}{style}.ttf"
    for family, slanted in _SLANTED.items()
    for style in ("", "-Bold", f"-{slanted}", f"-Bold{slanted}")
)
_BLOCK = 4  # ink is counted in blocks of 4×4 pixels
_MASTER = 64  # height and width of the undistorted letters
_POINTS = 160  # size of the font before letters are fitted into their box


def render_letters(
    count: int, generator: np.random.Generator, size: int = 8, chunk: int = 4096
) -> tuple[np.ndarray, np.ndarray]:
    """Draw distorted letters: bright ink (up to 255) on a background of 0.

    Letter and font are uniform. Distortions are normal with the standard deviations: rotation 12°,
    shear 0.15, logarithm of the scale per axis 0.1 and, in units of half the image, shift 0.05 and
    a smooth displacement as of a hand 0.06. The thickest stroke of every letter gets the half-width
    0.2 · exp(0.2 · N(0, 1)).

    Args:
        count: Number of letters.
        generator: Source of randomness; everything is drawn from it first.
        size: Height and width in pixels.
        chunk: Number of letters that are drawn at a time; it changes no pixel.

    Returns:
        uint8 images [count, size, size] and int64 labels [count] in 0 … 51.
    """
    import torch
    from torch.nn.functional import avg_pool2d, grid_sample, interpolate

    masters = torch.from_numpy(_masters())
    labels = generator.integers(len(LETTERS), size=count)
    faces = generator.integers(len(FONTS), size=count)
    affine = torch.from_numpy(_affine(count, generator))
    # 4×4 control points of the smooth displacement.
    waves = generator.standard_normal((count, 2, 4, 4), dtype=np.float32)
    wobble = torch.from_numpy(np.float32(0.06) * waves)
    spread = np.float32(0.2) * generator.standard_normal(count, dtype=np.float32)
    width = torch.from_numpy(np.float32(0.2) * np.exp(spread))
    level = width - masters.amax(dim=(2, 3))[faces, labels]
    fine = _BLOCK * size
    centres = (torch.arange(fine, dtype=torch.float32) + 0.5) * (2.0 / fine) - 1.0
    y, x = torch.meshgrid(centres, centres, indexing="ij")
    plane = torch.stack([x, y, torch.ones_like(x)]).view(3, fine * fine)
    images = np.empty((count, size, size), dtype=np.uint8)
    for start in range(0, count, chunk):
        part = slice(start, min(start + chunk, count))
        letters = masters[faces[part], labels[part]].unsqueeze(1)
        grid = (affine[part] @ plane).view(-1, 2, fine, fine)
        grid += interpolate(wobble[part], size=(fine, fine), mode="bicubic", align_corners=True)
        distance = grid_sample(
            letters, grid.permute(0, 2, 3, 1), padding_mode="border", align_corners=False
        )
        ink = (distance + level[part].view(-1, 1, 1, 1) > 0).to(torch.float32)
        blocks = avg_pool2d(ink, _BLOCK).squeeze(1)
        images[part] = (blocks * 255.0).round().to(torch.uint8).numpy()
    return images, labels.astype(np.int64)


def _affine(count: int, generator: np.random.Generator) -> np.ndarray:
    """Return maps float32 [count, 2, 3] from positions in the image to those in the letter."""
    angle = np.deg2rad(12.0) * generator.standard_normal(count)
    slant = 0.15 * generator.standard_normal(count)
    stretch = np.exp(0.1 * generator.standard_normal((count, 2)))
    offset = 0.05 * generator.standard_normal((count, 2, 1))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    lean = np.array([[np.ones(count), slant], [np.zeros(count), np.ones(count)]])
    linear = (np.moveaxis(turn, -1, 0) @ np.moveaxis(lean, -1, 0)) * stretch[:, :, None]
    return np.concatenate([linear, offset], axis=-1).astype(np.float32)


@functools.cache
def _masters() -> np.ndarray:
    """Return signed distances to the outline, float32 [fonts, 52, 64, 64], positive in the ink.

    They are in units of half the image. A distance field, unlike a bitmap, can be sampled smoothly
    and thresholded at another level, which makes strokes thicker or thinner.
    """
    from scipy.ndimage import distance_transform_edt

    fields = np.empty((len(FONTS), len(LETTERS), _MASTER, _MASTER), dtype=np.float32)
    for f, font in enumerate(FONTS):
        for c, letter in enumerate(LETTERS):
            ink = _bitmap(font, letter)
            distance = distance_transform_edt(ink) - distance_transform_edt(~ink)
            fields[f, c] = distance * (2.0 / _MASTER)
    return fields


def _bitmap(font: str, letter: str) -> np.ndarray:
    """Return a letter as bool [64, 64]; it fills the height, and at most 5/8 of the width."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    face = ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/{font}", _POINTS)
    canvas = Image.new("L", (3 * _POINTS, 3 * _POINTS), 0)
    ImageDraw.Draw(canvas).text((_POINTS, _POINTS), letter, font=face, fill=255)
    # Cropped to the ink: a font's own box has margins that differ left and right.
    canvas = canvas.point([0] * 128 + [255] * 128)
    canvas = canvas.crop(canvas.getbbox())
    height = round(0.95 * _MASTER)
    # A narrow letter (i, l) keeps its shape; a wide one (m, W) is squeezed like a written digit.
    width = min(round(canvas.width * height / canvas.height), round(0.625 * height))
    small = canvas.resize((max(width, 2), height), Image.Resampling.BOX)
    box = Image.new("L", (_MASTER, _MASTER), 0)
    box.paste(small, ((_MASTER - small.width) // 2, (_MASTER - height) // 2))
    return np.asarray(box) >= 128
