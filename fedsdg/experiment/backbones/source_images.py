"""What a backbone is trained on from scratch: images and labels, and batches of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsdg.data.datasets import global_test_set
from fedsdg.data.glyphs import render_letters
from fedsdg.data.images import Pictures
from fedsdg.data.reading import load
from fedsdg.data.sources import built_in
from fedsdg.experiment.backbones.recipe import AUGMENT, BATCHES, DATA, LETTERS, Recipe
from fedsdg.models import Architecture, shift_and_mirror
from fedsdg.rng import stream


class SourceImages(NamedTuple):
    """Images uint8 and labels int64, to train on and held out."""

    images: np.ndarray
    labels: np.ndarray
    held_images: np.ndarray
    held_labels: np.ndarray

    @property
    def sha256(self) -> str:
        digest = hashlib.sha256()
        for values in self:
            digest.update(f"{values.dtype} {values.shape}".encode())
            digest.update(np.ascontiguousarray(values).data)
        return digest.hexdigest()


def source_images(recipe: Recipe) -> SourceImages:
    """Rendered letters, or a named data set with its global test set held out."""
    generator = stream("pretraining", recipe.seed, DATA)
    if recipe.data == LETTERS:
        cut = recipe.images or 0
        images, labels = render_letters(cut + recipe.held_out, generator, recipe.image_size)
        return SourceImages(images[:cut], labels[:cut], images[cut:], labels[cut:])
    data = load(built_in(recipe.data))
    order = generator.permutation(len(data.labels))
    held = np.isin(order, global_test_set(data.labels, data.test))
    chosen, test = order[~held][: recipe.images], order[held]
    return SourceImages(
        data.images[chosen], data.labels[chosen], data.images[test], data.labels[test]
    )


def architecture_of(recipe: Recipe, images: np.ndarray) -> Architecture:
    """The recipe's; mean and standard deviation are those of the images where it has none."""
    mean, std, channels = recipe.mean, recipe.std, recipe.channels
    if mean is None or std is None:
        plain = Pictures(images, recipe.image_size, channels, [0.0] * channels, [1.0] * channels)
        sample = plain.prepared(images[:20_000]).astype(np.float64)
        mean = tuple(round(float(m), 6) for m in sample.mean(axis=(0, 2, 3)))
        std = tuple(round(float(s), 6) for s in sample.std(axis=(0, 2, 3)))
    keys = ("image_size", "patch_size", "channels", "dim", "depth", "heads", "mlp_ratio")
    return Architecture(**{key: getattr(recipe, key) for key in keys}, mean=mean, std=std)


def pixels_of(
    images: np.ndarray, architecture: Architecture, device: str
) -> Callable[[np.ndarray], Tensor]:
    """Row numbers -> their images as the model takes them.

    A GPU holds them all, prepared; a CPU prepares a batch at a time, which costs it next to
    nothing and saves three quarters of the memory.
    """
    if device == "cpu":
        return lambda rows: prepared(images[rows], architecture)
    resident = prepared(images, architecture).to(device)
    return lambda rows: resident[torch.from_numpy(rows).to(device)]


def prepared(images: np.ndarray, architecture: Architecture) -> Tensor:
    """Images uint8 as the model takes them, float32 [n, channels, size, size]."""
    size, channels = architecture.image_size, architecture.channels
    pictures = Pictures(images, size, channels, architecture.mean, architecture.std)
    return torch.from_numpy(pictures.prepared(images))


def batches_of(
    recipe: Recipe, pixels: Callable[[np.ndarray], Tensor], labels: np.ndarray, done: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Epochs without end: a new order each, the incomplete last batch left out.

    The first `done` batches are drawn and not made, so that the streams stand where they stood.
    """
    order = stream("pretraining", recipe.seed, BATCHES)
    augmentation = stream("pretraining", recipe.seed, AUGMENT)
    size = min(recipe.batch_size, len(labels))
    reach = max(1, recipe.image_size // 8)
    drawn = 0
    while True:
        shuffled = order.permutation(len(labels))
        for start in range(0, len(labels) - size + 1, size):
            chosen = shuffled[start : start + size]
            if recipe.augment != "none":
                shifts = augmentation.integers(-reach, reach + 1, size=(2, size))
                mirrored = augmentation.random(size) < 0.5
                mirrored &= recipe.augment == "crop-flip"
            drawn += 1
            if drawn <= done:
                continue
            batch = pixels(chosen)
            if recipe.augment != "none":
                moves = [torch.from_numpy(move).to(batch.device) for move in (shifts, mirrored)]
                batch = shift_and_mirror(batch, *moves)
            yield batch, torch.from_numpy(labels[chosen]).to(batch.device)
