"""Data in memory: hashes, the input of a backbone, letters."""

import numpy as np
import pytest
from PIL import Image

from fedsdg.data.datasets import Column, ImageData
from fedsdg.data.glyphs import LETTERS, render_letters
from fedsdg.data.images import Pictures
from tests.data.pictures import noise


def test_the_hash_covers_everything_but_name_facts_and_notes():
    images, labels = noise(0, (6, 4, 4)), np.array([0, 1, 2] * 2)
    test = np.arange(6) > 3
    column = {"writer": Column(np.arange(6), tuple("abcdef"))}
    base = {"images": images, "labels": labels, "num_classes": 3, "test": test}
    base |= {"classes": ("x", "y", "z"), "columns": column}
    known = ImageData("one", **base).sha256
    assert ImageData("two", **base, facts={"a": 1}, notes=("b",)).sha256 == known
    changes = [("images", 255 - images), ("labels", labels[::-1]), ("num_classes", 4)]
    changes += [("test", ~test), ("classes", ("x", "y", "w")), ("columns", {})]
    for codes, names in ((np.arange(6)[::-1], "abcdef"), (np.arange(6), "abcdeg")):
        changes.append(("columns", {"writer": Column(codes, tuple(names))}))
    changes.append(("columns", {"site": column["writer"]}))
    hashes = {ImageData("one", **(base | {name: value})).sha256 for name, value in changes}
    assert len(hashes | {known}) == len(changes) + 1


SQUARE = np.zeros((3, 4, 4), np.uint8)


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (np.zeros((3, 4, 4)), [0, 1, 2], "float64"),
        (np.zeros((3, 4, 4, 4), np.uint8), [0, 1, 2], "uint8"),
        (np.zeros((3, 4, 5), np.uint8), [0, 1, 2], "H, H"),
        (SQUARE, [0, 1], "2 labels"),
        (SQUARE, [0, 1, 3], "0 … 3"),
        (SQUARE, [0.0, 0.5, 1.0], "float64"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(images, labels, words):
    with pytest.raises((TypeError, ValueError), match=words):
        ImageData("any", images, np.array(labels), 3)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("shape", [(7, 9, 9), (7, 9, 9, 3)])
def test_channels_and_normalisation_by_hand(shape, channels):
    images = noise(1, shape)
    mean, std = (0.3, 0.4, 0.5)[:channels], (0.2, 0.3, 0.4)[:channels]
    found = Pictures(images, 9, channels, mean, std).prepared(images, chunk=2)
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
    found = Pictures(images, size, 1, (0.0,), (1.0,)).prepared(images) * 255
    for image, row in zip(images, found[:, 0], strict=True):
        exact = Image.fromarray(image.astype(np.float32)).resize((size, size), Image.BILINEAR)
        assert np.abs(np.asarray(exact) - row).max() < 0.01


def test_letters_are_those_that_recorded_backbones_learned():
    images, labels = render_letters(2000, np.random.default_rng(0))
    assert images.shape == (2000, 8, 8) and images.dtype == np.uint8
    counts = np.bincount(labels, minlength=len(LETTERS))
    assert len(counts) == 52 and counts.min() > 15
    moments = (images[:6].reshape(6, 64).astype(int) * np.arange(64)).sum(axis=1)
    expected = [93510, 146614, 235005, 108588, 131620, 131316]
    assert np.allclose(moments, expected, rtol=2e-3)
