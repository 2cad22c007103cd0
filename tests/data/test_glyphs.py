"""Letters: deterministic, legible, of the digits' look, and no digits."""

import time

import numpy as np
import pytest

from fedsdg.data.datasets import load_dataset
from fedsdg.data.glyphs import LETTER_FONTS, LETTERS, render_letters

STILL = {"rotation": 0, "shear": 0, "scale": 0, "shift": 0, "wobble": 0, "stroke_spread": 0}


def draw(count, seed=0, **options):
    return render_letters(count, np.random.default_rng(seed), **options)


def test_the_alphabet_has_no_digits():
    assert len(LETTERS) == 52 == len(set(LETTERS)) and LETTERS.isalpha() and LETTERS.isascii()
    assert LETTERS[0] == "a" and LETTERS[26] == "A"


def test_shapes_types_and_uniform_labels():
    images, labels = draw(5200)
    assert images.shape == (5200, 8, 8) and images.dtype == np.uint8
    assert labels.shape == (5200,) and labels.dtype == np.int64
    counts = np.bincount(labels, minlength=52)
    assert len(counts) == 52
    assert np.abs(counts - 100).max() < 5 * np.sqrt(100)


def test_the_generator_decides_everything():
    a, b, c = draw(50, 0), draw(50, 0), draw(50, 1)
    assert np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1])
    assert not np.array_equal(a[0], c[0])
    assert np.array_equal(draw(50, 0, chunk=7)[0], a[0])


@pytest.mark.parametrize("size", [8, 16, 28])
def test_sizes(size):
    assert draw(3, size=size)[0].shape == (3, size, size)


def test_one_font_without_distortion_gives_one_image_per_letter():
    images, labels = draw(400, fonts=LETTER_FONTS[:1], **STILL)
    for c in set(labels.tolist()):
        assert len(np.unique(images[labels == c], axis=0)) == 1
    moved, _ = draw(400, fonts=LETTER_FONTS[:1])
    assert len(np.unique(moved, axis=0)) > 395


def test_every_distortion_moves_pixels():
    plain, _ = draw(60, **STILL)
    for name in STILL:
        moved, _ = draw(60, **(STILL | {name: 10 if name == "rotation" else 0.2}))
        assert not np.array_equal(plain, moved), name


def test_letters_stand_upright():
    """L: ink on the left and at the bottom; T: at the top; a flip would move both."""
    images, labels = draw(4000, fonts=("DejaVuSans.ttf",), **STILL)
    big_l = images[labels == LETTERS.index("L")][0].astype(float)
    assert big_l[:, :4].sum() > 2 * big_l[:, 4:].sum()
    assert big_l[4:].sum() > 1.5 * big_l[:4].sum()
    big_t = images[labels == LETTERS.index("T")][0].astype(float)
    assert big_t[:4].sum() > 1.5 * big_t[4:].sum()
    assert np.allclose(big_t[:, :4].sum(), big_t[:, 4:].sum(), rtol=0.2)


def test_look_of_the_digits():
    """Bright on dark, the same 17 levels, and the distribution of ink near the digits'."""
    images, _ = draw(4000)
    digits = load_dataset("digits").images
    assert set(np.unique(images)) == set(np.unique(digits))
    assert np.abs(images.mean() - digits.mean()) < 20
    assert np.abs((images == 0).mean() - (digits == 0).mean()) < 0.12
    # Both fill the box: rows 0 and 7 carry ink, columns 0 and 7 hardly any.
    assert images[:, [0, 7]].mean() > 3 * images[:, :, [0, 7]].mean()
    assert images.reshape(4000, -1).max(axis=1).min() > 100, "no letter is blank"


def test_unusable_input():
    with pytest.raises(ValueError, match=r"no font 'Comic\.ttf'"):
        draw(1, fonts=("Comic.ttf",))
    with pytest.raises(ValueError, match="at least 1"):
        draw(0)
    with pytest.raises(ValueError, match="at least 1"):
        draw(1, size=0)


@pytest.mark.slow
def test_sixty_thousand_letters_take_seconds():
    start = time.perf_counter()
    draw(60_000)
    assert time.perf_counter() - start < 20


def test_letters_of_one_label_resemble_each_other():
    """A nearest-mean classifier, fitted on one draw and judged on another, beats chance by far."""
    images, labels = draw(6000, 0)
    means = np.stack([images[labels == c].mean(axis=0) for c in range(52)]).reshape(52, -1)
    others, truth = draw(2000, 1)
    flat = others.reshape(len(others), -1).astype(float)
    guess = ((flat[:, None] - means[None]) ** 2).sum(-1).argmin(1)
    assert (guess == truth).mean() > 0.3
