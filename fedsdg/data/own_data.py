"""What a config says of a data set that the table does not hold. Imports no library.

Where its images lie, which columns hold image, label and domain, which splits are training and
test, and to what size and channels images are brought.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

#: Filters of Pillow that resize, and the ways to make an image square with them.
RESIZE = ("bilinear", "bicubic", "lanczos", "box", "hamming", "nearest")
FIT = ("crop", "pad", "stretch")
#: What becomes of test images that are training images too.
DUPLICATES = ("refuse", "report")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_CHOICES: dict[str, tuple[Any, ...]] = {
    "channels": (None, 1, 3),
    "resize": RESIZE,
    "fit": FIT,
    "duplicates": DUPLICATES,
}


@dataclass(frozen=True)
class OwnData:
    """A data set by its declaration; see docs/own-data.md.

    ``folder``: parquet files or images below it, relative to the working directory or else to
    $FEDSDG_DATA; or one parquet file. ``hub``: OWNER/NAME or OWNER/NAME/SUBSET on the Hugging Face
    hub. One of the two is given.
    ``image``, ``label``, ``domain``: names of columns. Without ``domain`` a set has the domains
    that the folders of its images name, or none.
    ``train``, ``test``: names of splits; None takes ``train`` and, where there is one, ``test``.
    ``size``: height and width that images are brought to; None keeps that of images which are all
    square and of one size, and takes 64 otherwise.
    ``channels``: 1 or 3; None: 3 where any image has colour, else 1.
    ``resize``, ``fit``: the filter, and how an image becomes square: its middle is cut out, it is
    padded with black, or it is stretched.
    ``duplicates``: whether test images whose pixels are those of a training image are refused, or
    reported in the provenance.

    Raises ValueError for anything else.
    """

    name: str
    folder: str | None = None
    hub: str | None = None
    image: str = "image"
    label: str = "label"
    domain: str | None = None
    train: str | None = None
    test: str | None = None
    size: int | None = None
    channels: int | None = None
    resize: str = "bilinear"
    fit: str = "crop"
    duplicates: str = "refuse"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValueError(
                f"datasets: the name {self.name!r} must be made of letters, digits, '_' and '-'; "
                "it is part of paths"
            )
        where = f"datasets: {self.name}"
        texts = ("folder", "hub", "image", "label", "domain", "train", "test")
        for key in texts:
            value = getattr(self, key)
            if value is None and key not in ("image", "label"):
                continue
            if not isinstance(value, str) or not value:
                raise ValueError(f"{where}.{key} is {value!r}, but must be a text")
        if (self.folder is None) == (self.hub is None):
            raise ValueError(f"{where} needs 'folder' or 'hub', one of the two")
        if self.hub is not None and self.hub.count("/") not in (1, 2):
            raise ValueError(
                f"{where}.hub is {self.hub!r}, but must be OWNER/NAME or OWNER/NAME/SUBSET"
            )
        if self.test is not None and self.test == self.train:
            raise ValueError(f"{where}.split names {self.test!r} for training and for the test")
        size = self.size
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise ValueError(
                f"{where}.size is {size!r}, but must be a whole number of at least 1 pixel"
            )
        for key, allowed in _CHOICES.items():
            if getattr(self, key) not in allowed:
                known = ", ".join(str(one) for one in allowed if one is not None)
                raise ValueError(
                    f"{where}.{key} is {getattr(self, key)!r}, but must be one of {known}"
                )
