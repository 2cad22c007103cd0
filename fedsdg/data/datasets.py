"""A labelled data set in memory, its hash, and its test set."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedsdg.rng import stream

#: Share of the samples that becomes the test set of data without one.
TEST_SHARE = 0.2


class Column(NamedTuple):
    """A column of n texts or whole numbers: sample i has the value ``names[codes[i]]``."""

    codes: np.ndarray
    "int64 [n]; −1: no value"
    names: tuple[str, ...]
    "the values"


@dataclass(frozen=True, eq=False)
class ImageData:
    """Labelled images, training images first.

    Raises:
        TypeError: Labels are no whole numbers.
        ValueError: An array has a wrong type or shape, or a label is out of range.

    Example:
        >>> data = ImageData("two", np.zeros((2, 8, 8), np.uint8), np.array([0, 1]), 2)
        >>> data.test.tolist(), data.sha256[:8]
        ([False, False], '055b1e8e')
    """

    name: str
    "name of the data set"
    images: np.ndarray
    "uint8 [n, H, H] grey or [n, H, H, 3] colour"
    labels: np.ndarray
    "int64 [n], 0 … num_classes − 1"
    num_classes: int
    "number of classes C"
    test: np.ndarray = None  # type: ignore[assignment]
    "bool [n], images of the set's own test split; without one (None when it is made) all False"
    classes: tuple[str, ...] = ()
    "names of the classes; empty for built-in sets"
    columns: Mapping[str, Column] = field(default_factory=dict)
    "columns whose values can become clients, by name"
    facts: Mapping[str, Any] = field(default_factory=dict)
    "origin of the images and what was done to them, for the provenance of runs"
    notes: tuple[str, ...] = ()
    "properties of the data that a command prints once, such as ignored files"

    def __post_init__(self) -> None:
        """Check the arrays and bring them to their types."""
        count, *shape = self.images.shape
        test = np.zeros(count, dtype=bool) if self.test is None else self.test.astype(bool)
        object.__setattr__(self, "test", test)
        object.__setattr__(self, "labels", self.labels.astype(np.int64, casting="same_kind"))
        square = len(shape) >= 2 and shape[0] == shape[1] and shape[2:] in ([], [3])
        if not square or self.images.dtype != np.uint8:
            raise ValueError(
                f"{self.name!r}: images are {self.images.dtype} [n, {str(shape)[1:]}; give uint8 "
                "[n, H, H] or [n, H, H, 3]"
            )
        if not len(self.labels) == len(test) == count:
            raise ValueError(
                f"{self.name!r}: {len(self.labels)} labels and {len(test)} flags for {count} images"
            )
        if count and not 0 <= self.labels.min() <= self.labels.max() < self.num_classes:
            raise ValueError(
                f"{self.name!r}: labels lie in {self.labels.min()} … {self.labels.max()}; number "
                f"the {self.num_classes} classes from 0"
            )

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of all fields but name, facts and notes."""
        digest = hashlib.sha256(f"{list(self.images.shape)} {self.num_classes}".encode())
        for values in (self.images, self.labels.astype("<i8"), self.test):
            digest.update(np.ascontiguousarray(values).data)
        columns = dict(sorted(self.columns.items()))
        if self.classes or columns:
            names = {name: column.names for name, column in columns.items()}
            # The empty list held names of domains in the first edition.
            digest.update(json.dumps([self.classes, [], names]).encode())
        for column in columns.values():
            digest.update(np.ascontiguousarray(column.codes, dtype="<i8").data)
        return digest.hexdigest()


def stratified_choice(
    labels: np.ndarray, total: int, generator: np.random.Generator, keep: int = 0
) -> np.ndarray:
    """Draw samples with every class in proportion to its size.

    Class c gives q_c = ⌊total · n_c / n⌋ samples, and the classes with the largest remainders one
    more (ties to the smaller class), in exact integer arithmetic. Only which samples they are is
    random.

    Args:
        labels: Whole numbers [n].
        total: Number of samples to draw.
        generator: Source of randomness.
        keep: Number of samples of each class that are never drawn; where this binds, fewer than
            ``total`` are drawn.

    Returns:
        Sorted indices of the samples.

    Example:
        >>> stratified_choice(np.array([0, 0, 0, 0, 1, 1]), 3, np.random.default_rng(0)).size
        3
    """
    classes, counts = np.unique(labels, return_counts=True)
    quota, remainder = np.divmod(total * counts, len(labels))
    largest = np.lexsort((classes, -remainder))
    quota[largest[: total - int(quota.sum())]] += 1
    quota = np.minimum(quota, np.maximum(counts - keep, 0))
    chosen = [
        generator.permutation(np.flatnonzero(labels == label))[:count]
        for label, count in zip(classes, quota, strict=True)
    ]
    return np.sort(np.concatenate(chosen))


def global_test_set(
    labels: np.ndarray, test: np.ndarray, generator: np.random.Generator | None = None
) -> np.ndarray:
    """Return sorted indices of the test images of a data set.

    Without a test split a fifth of the samples is drawn, stratified, never the only one of a class.

    Args:
        labels: int64 [n].
        test: bool [n], the images of the set's own test split.
        generator: Source of randomness; None: the images depend on the labels alone, not on seed,
            skew or number of clients.
    """
    if test.any():
        return np.flatnonzero(test)
    share = TEST_SHARE * len(labels)
    if generator is not None:
        return stratified_choice(labels, round(share), generator, keep=1)
    return stratified_choice(labels, math.ceil(share), stream("test-split", 0), keep=1)
