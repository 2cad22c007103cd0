"""Declarations of data sets: the built-in ones, and users' own as a config describes them."""

import re
from typing import Literal

from fedsdg.errors import require_one_of
from fedsdg.parts import Count, Part

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
#: Number of classes of each built-in data set, whose labels are 0 … C − 1.
NUM_CLASSES = {
    "digits": 10,
    "mnist": 10,
    "usps": 10,
    "fashion_mnist": 10,
    "cifar10": 10,
    "cifar100": 100,
    "tiny_imagenet_32": 200,
}


class Source(Part):
    """Where labelled images are, and how they become square arrays of one size.

    Example:
        >>> Source(name="pets", folder="photos/pets", size=64).fit
        'crop'
    """

    name: str
    "name in paths, tables and configs: letters, digits, `_` and `-`"
    folder: str | None = None
    """folder with parquet files, or with images as [train|test/]CLASS/image, or one
    parquet file; relative to the working directory, else to $FEDSDG_DATA"""
    hub: str | None = None
    """OWNER/NAME or OWNER/NAME/SUBSET on the Hugging Face hub; files in the folder
    $FEDSDG_DATA/`name` are read instead if there is one"""
    image: str = "image"
    "column of the encoded images"
    label: str = "label"
    "column of the labels, which are texts or whole numbers"
    train: str = "train"
    "split to train on; without any split, everything is for training"
    test: str = "test"
    "split of the global test set; without one, a stratified fifth is drawn"
    size: Count | None = None
    "height and width in pixels; null: unchanged if all images are square and equal, else 64"
    channels: Literal[1, 3] | None = None
    "1 grey, 3 colour; null: 3 if any image has colour"
    fit: Literal["crop", "pad", "stretch"] = "crop"
    "how an image becomes square: its middle, padded with black, or stretched"
    background: Literal["white", "grey", "black"] = "white"
    "colour behind transparent pixels"

    def check_fields(self) -> None:
        """Check the name and the origin.

        Raises:
            ValueError: The name cannot be part of a path, or there is not exactly one origin.
        """
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name is {self.name!r}: use letters, digits, '_' and '-' for paths")
        if not self.built_in and bool(self.folder) == bool(self.hub):
            raise ValueError(f"{self.name!r} needs 'folder' or 'hub', exactly one of them")

    @property
    def built_in(self) -> bool:
        """Whether the set is in ``DATASETS``, whose sizes and classes are known."""
        return self.name in NUM_CLASSES


_SOURCES = (
    Source(name="digits", size=8, channels=1),
    Source(name="mnist", hub="ylecun/mnist", size=28, channels=1),
    Source(name="usps", hub="flwrlabs/usps", size=16, channels=1),
    Source(name="fashion_mnist", hub="zalando-datasets/fashion_mnist", size=28, channels=1),
    Source(name="cifar10", hub="uoft-cs/cifar10", image="img", size=32, channels=3),
    Source(
        name="cifar100",
        hub="uoft-cs/cifar100",
        image="img",
        label="fine_label",
        size=32,
        channels=3,
    ),
    Source(name="tiny_imagenet_32", size=32, channels=3),
)
#: The built-in data sets. `digits` comes with scikit-learn; the others are parquet files in
#: `$FEDSDG_DATA/NAME`, else from the hub if they have an address there.
DATASETS = {source.name: source for source in _SOURCES}


def built_in(name: str) -> Source:
    """Return a built-in data set by name.

    Raises:
        ValueError: There is none of this name.
    """
    require_one_of(DATASETS, name, "unknown data set")
    return DATASETS[name]
