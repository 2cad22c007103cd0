"""Data in memory: hashes, the input of a backbone, views, letters."""

import string

import numpy as np
import pytest
import torch
from PIL import Image

from fedsdg.next_data.datasets import Column, ImageData
from fedsdg.next_data.glyphs import LETTERS, render_letters
from fedsdg.next_data.images import Pictures
from fedsdg.next_data.reading import load
from fedsdg.next_data.sources import built_in
from fedsdg.next_data.transforms import View
from tests.next_data.pictures import noise


def pictures(images, size, channels, mean=0.0, std=1.0):
    return Pictures(images, size, channels, (mean,) * channels, (std,) * channels)


# --- Hash -----------------------------------------------------------------------------------------


def test_the_hash_covers_everything_but_name_facts_and_notes():
    images, labels = noise(0, (6, 4, 4)), np.array([0, 1, 2] * 2)
    test = np.arange(6) > 3
    column = {"writer": Column(np.arange(6), tuple("abcdef"))}
    base = {"images": images, "labels": labels, "num_classes": 3, "test": test}
    base |= {"classes": ("x", "y", "z"), "columns": column}
    known = ImageData("one", **base).sha256
    assert ImageData("two", **base, facts={"a": 1}, notes=("b",)).sha256 == known
    changes = [
        {"images": 255 - images},
        {"images": images.reshape(6, 2, 8)},
        {"labels": labels[::-1]},
        {"num_classes": 4},
        {"test": ~test},
        {"classes": ("x", "y", "w")},
        {"columns": {}},
        {"columns": {"site": column["writer"]}},
        {"columns": {"writer": Column(np.arange(6)[::-1], tuple("abcdef"))}},
        {"columns": {"writer": Column(np.arange(6), tuple("abcdeg"))}},
    ]
    hashes = {ImageData("one", **(base | change)).sha256 for change in changes}
    assert len(hashes | {known}) == len(changes) + 1


@pytest.mark.parametrize(
    ("images", "labels", "classes", "words"),
    [
        (np.zeros((3, 4, 4)), [0, 1, 2], 3, "float64"),
        (np.zeros((3, 4, 4, 4), np.uint8), [0, 1, 2], 3, "uint8"),
        (np.zeros((3, 16), np.uint8), [0, 1, 2], 3, "uint8"),
        (np.zeros((3, 4, 4), np.uint8), [0, 1], 3, "2 labels"),
        (np.zeros((3, 4, 4), np.uint8), [0, 1, 3], 3, "from 0 to 3"),
        (np.zeros((3, 4, 4), np.uint8), [-1, 1, 2], 3, "from -1 to 2"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(images, labels, classes, words):
    with pytest.raises(ValueError, match=words):
        ImageData("any", images, np.array(labels), classes)


# --- The input of a backbone ----------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("shape", [(7, 9, 9), (7, 9, 9, 3)])
def test_channels_and_normalisation_by_hand(shape, channels):
    images = noise(1, shape)
    mean, std = (0.3, 0.4, 0.5)[:channels], (0.2, 0.3, 0.4)[:channels]
    found = Pictures(images, 9, channels, mean, std).prepared(chunk=2)
    scaled = images.astype(np.float64) / 255
    planes = [scaled] * 3 if images.ndim == 3 else [scaled[..., c] for c in range(3)]
    if channels == 1:
        planes = [0.299 * planes[0] + 0.587 * planes[1] + 0.114 * planes[2]]
    expected = [(p - m) / s for p, m, s in zip(planes, mean, std, strict=True)]
    assert found.dtype == np.float32 and found.shape == (7, channels, 9, 9)
    assert np.abs(found - np.stack(expected, axis=1)).max() < 1e-5


@pytest.mark.parametrize("size", [5, 9, 20])
def test_resizing_is_pillows_bilinear_filter(size):
    images = noise(2, (3, 9, 9))
    found = pictures(images, size, 1).prepared() * 255
    for image, row in zip(images, found[:, 0], strict=True):
        exact = Image.fromarray(image.astype(np.float32)).resize((size, size), Image.BILINEAR)
        assert np.abs(np.asarray(exact) - row).max() < 0.01


def test_other_images_of_the_same_kind_and_images_that_are_not_square():
    made = pictures(noise(3, (4, 6, 6)), 6, 1)
    assert np.array_equal(made.prepared(made.stored[1:3]), made.prepared()[1:3])
    with pytest.raises(ValueError, match="square"):
        pictures(noise(3, (4, 6, 7)), 6, 1)


# --- Views ----------------------------------------------------------------------------------------


def draw(*keys):
    return np.random.default_rng(list(keys))


def seen(images, kind, degrees=None, draw=draw):
    return View(kind, draw, degrees)(images, np.arange(len(images)))


class Constant:
    """A generator whose normal numbers are all the same."""

    def __init__(self, value):
        self.value = value

    def standard_normal(self, shape):
        return np.full(shape, self.value)


def test_views_by_hand():
    images = np.zeros((2, 5, 5), np.uint8)
    images[:, 0, 2] = 200
    assert np.array_equal(seen(images, "invert"), 255 - images)
    # Counter-clockwise: what was on top is on the left.
    turned = seen(images, "rotate", 90.0)
    assert (turned[:, 2, 0] == 200).all() and turned.sum() == 400
    for value, expected in ((0.0, 0), (1.0, 64), (10.0, 255), (-1.0, 0)):
        noisy = seen(images, "noise", draw=lambda *_, value=value: Constant(value))
        assert noisy[0, 1, 1] == expected
    colour = noise(0, (3, 6, 6, 3))
    for c in range(3):
        alone = seen(np.ascontiguousarray(colour[..., c]), "rotate", 30.0)
        assert np.array_equal(seen(colour, "rotate", 30.0)[..., c], alone)


def test_a_view_is_the_same_whenever_an_image_is_seen():
    images, numbers = noise(0, (6, 8, 8)), np.arange(10, 16)
    for kind in ("invert", "rotate", "noise"):
        view = View(kind, draw)
        found = view(images, numbers)
        assert found.dtype == np.uint8 and not np.array_equal(found, images)
        assert np.array_equal(view(images[4:], numbers[4:]), found[4:])


def test_angles_are_drawn_on_both_sides():
    angles = [View("rotate", lambda *_, s=s: np.random.default_rng(s)).angle() for s in range(200)]
    assert min(map(abs, angles)) >= 15 and max(map(abs, angles)) <= 60
    assert 60 < sum(angle > 0 for angle in angles) < 140


# --- Letters --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def letters():
    return render_letters(2000, np.random.default_rng(0))


def test_letters_are_drawn_from_the_generator_alone(letters):
    assert string.ascii_lowercase + string.ascii_uppercase == LETTERS
    images, labels = letters
    assert images.shape == (2000, 8, 8) and images.dtype == np.uint8
    assert len(np.bincount(labels, minlength=52)) == 52 and np.bincount(labels).min() > 15
    chunked = render_letters(50, np.random.default_rng(0), chunk=7)
    assert np.array_equal(chunked[0], render_letters(50, np.random.default_rng(0))[0])
    assert not np.array_equal(chunked[0], images[:50])
    assert render_letters(3, np.random.default_rng(0), size=16)[0].shape == (3, 16, 16)


def test_letters_are_those_that_recorded_backbones_learned(letters):
    moments = (letters[0][:6].reshape(6, 64).astype(int) * np.arange(64)).sum(axis=1)
    expected = [93510, 146614, 235005, 108588, 131620, 131316]
    assert np.allclose(moments, expected, rtol=2e-3)


def test_letters_look_like_the_digits_and_stand_upright(letters):
    images, labels = letters
    digits = load(built_in("digits")).images
    assert set(np.unique(images)) == set(np.unique(digits))
    assert abs(images.mean() - digits.mean()) < 20
    assert images.reshape(2000, -1).max(axis=1).min() > 100
    mean_l = images[labels == LETTERS.index("L")].mean(axis=0)
    assert mean_l[:, :4].sum() > 1.5 * mean_l[:, 4:].sum() and mean_l[4:].sum() > mean_l[:4].sum()


def test_letters_can_be_told_apart(letters):
    images, labels = (torch.from_numpy(one) for one in letters)
    flat = images.float().flatten(1)
    centres = torch.stack([flat[:1500][labels[:1500] == c].mean(0) for c in range(52)])
    guess = torch.cdist(flat[1500:], centres).argmin(1)
    assert (guess == labels[1500:]).float().mean() > 0.3
