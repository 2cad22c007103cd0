"""Preparation of images against formulas done by hand and against PIL."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedsdg.data.images import prepare

GREY: dict[str, Any] = {"mean": (0.0,), "std": (1.0,)}
COLOUR: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def pixels(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def test_identity_when_the_size_is_right():
    images = pixels(5, 8, 8)
    out = prepare(images, size=8, channels=1, **GREY)
    assert out.dtype == np.float32 and out.shape == (5, 1, 8, 8)
    assert np.array_equal(out[:, 0], images.astype(np.float32) / np.float32(255))


def test_colour_keeps_its_channels_in_order():
    images = pixels(3, 4, 4, 3)
    out = prepare(images, size=4, channels=3, **COLOUR)
    assert np.array_equal(out, (images.astype(np.float32) / 255).transpose(0, 3, 1, 2))


def test_mean_and_std_per_channel():
    images = pixels(3, 4, 4, 3)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    out = prepare(images, size=4, channels=3, mean=mean, std=std)
    expected = (images / 255.0 - mean) / std
    assert np.allclose(out, expected.transpose(0, 3, 1, 2), atol=1e-6)


def test_grey_to_colour_repeats_then_normalises_each_channel():
    images = pixels(3, 4, 4)
    out = prepare(images, size=4, channels=3, mean=(0.0, 0.5, 0.0), std=(1.0, 1.0, 0.5))
    plain = images / 255.0
    assert np.allclose(out, np.stack([plain, plain - 0.5, plain * 2], 1), atol=1e-6)


def test_colour_to_grey_is_luma():
    images = pixels(6, 4, 4, 3)
    out = prepare(images, size=4, channels=1, **GREY)
    oracle = [np.asarray(Image.fromarray(x).convert("L")) for x in images]
    assert np.abs(out[:, 0] * 255 - oracle).max() < 0.51  # PIL rounds to whole levels
    equal = np.repeat(pixels(2, 4, 4)[..., None], 3, axis=-1)
    assert np.allclose(
        prepare(equal, size=4, channels=1, **GREY)[:, 0], equal[..., 0] / 255, atol=1e-6
    )


@pytest.mark.parametrize(("before", "after"), [(28, 8), (16, 8), (32, 8), (28, 32), (8, 16)])
def test_resizing_agrees_with_pil(before, after):
    images = pixels(4, before, before)
    out = prepare(images, size=after, channels=1, **GREY)
    for x, ours in zip(images, out[:, 0], strict=True):
        image = Image.fromarray(x.astype(np.float32))
        oracle = np.asarray(image.resize((after, after), Image.Resampling.BILINEAR))
        assert np.abs(ours * 255 - oracle).max() < 1e-2


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 12), st.integers(1, 12), st.integers(0, 255), st.sampled_from([1, 3]))
def test_flat_images_stay_flat(before, after, level, channels):
    images = np.full((2, before, before), level, dtype=np.uint8)
    mean, std = (0.25,) * channels, (0.5,) * channels
    out = prepare(images, size=after, channels=channels, mean=mean, std=std)
    assert out.shape == (2, channels, after, after)
    assert np.allclose(out, (level / 255 - 0.25) / 0.5, atol=1e-5)


def test_chunks_change_nothing_and_the_source_is_left_alone():
    images = pixels(11, 8, 8, 3)
    before = images.copy()
    whole = prepare(images, size=5, channels=3, **COLOUR)
    for chunk in (1, 4, 11):
        assert np.array_equal(prepare(images, size=5, channels=3, chunk=chunk, **COLOUR), whole)
    assert np.array_equal(images, before)
    assert prepare(images[:0], size=5, channels=3, **COLOUR).shape == (0, 3, 5, 5)


@pytest.mark.parametrize(
    ("images", "change", "message"),
    [
        (np.zeros((2, 4, 4)), {}, "must be uint8"),
        (np.zeros((2, 4, 4, 2), np.uint8), {}, "must be uint8"),
        (np.zeros((2, 4, 5), np.uint8), {}, "square"),
        (np.zeros((2, 4, 4), np.uint8), {"channels": 2}, "channels"),
        (np.zeros((2, 4, 4), np.uint8), {"size": 0}, "size"),
        (np.zeros((2, 4, 4), np.uint8), {"std": (0.0,)}, "std"),
        (np.zeros((2, 4, 4), np.uint8), {"mean": (0.0, 0.0, 0.0)}, "per channel"),
        (np.zeros((2, 4, 4), np.uint8), {"channels": 3}, "per channel"),
    ],
)
def test_unusable_input(images, change, message):
    with pytest.raises(ValueError, match=message):
        prepare(images, **({"size": 4, "channels": 1} | GREY | change))
