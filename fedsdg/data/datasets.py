"""The table of data sets, and ``load_dataset``.

A data set comes, in this order, from the package (``digits``, by scikit-learn), from other sets of
the table (``fedsdg.data.domains``), from the folder ``$FEDSDG_DATA/<name>`` (parquet files of the
splits ``train`` and ``test``, see ``fedsdg.data.splits``), or from the hub. Column names, image
size and channels are declared here and checked against what is found; nothing is guessed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedsdg.files import hint

FOLDER_VARIABLE = "FEDSDG_DATA"


@dataclass(frozen=True)
class DatasetSpec:
    """One row of the table.

    ``hub_id``: repository on the Hugging Face hub, None where there is none.
    ``channels``: 1 (grey) or 3 (RGB); stored images of another mode are converted.
    ``size``: height and width in pixels; an image of another size is an error.
    ``official_test``: whether the set has a test set of its own (it must then be there).
    ``domains``: names of the domains that its samples come from, none for most sets.
    """

    name: str
    hub_id: str | None
    image_column: str
    label_column: str
    num_classes: int
    channels: int
    size: int
    official_test: bool = True
    note: str = ""
    domains: tuple[str, ...] = ()


_TABLE = (
    DatasetSpec("digits", None, "", "", 10, 1, 8, official_test=False, note="from scikit-learn"),
    DatasetSpec("mnist", "ylecun/mnist", "image", "label", 10, 1, 28),
    DatasetSpec("usps", "flwrlabs/usps", "image", "label", 10, 1, 16),
    DatasetSpec("fashion_mnist", "zalando-datasets/fashion_mnist", "image", "label", 10, 1, 28),
    DatasetSpec("cifar10", "uoft-cs/cifar10", "img", "label", 10, 3, 32),
    DatasetSpec("cifar100", "uoft-cs/cifar100", "img", "fine_label", 100, 3, 32),
    DatasetSpec(
        "tiny_imagenet_32", None, "image", "label", 200, 3, 32, note="for pretraining a backbone"
    ),
    DatasetSpec(
        "digits_domains",
        None,
        "",
        "",
        10,
        1,
        8,
        official_test=False,
        note="digits, a quarter each plain, turned, drawn with thick strokes, and noisy",
        domains=("plain", "rotated", "thick", "noisy"),
    ),
    DatasetSpec(
        "mnist_usps", None, "", "", 10, 1, 28, note="both together", domains=("mnist", "usps")
    ),
)
DATASETS: Mapping[str, DatasetSpec] = MappingProxyType({spec.name: spec for spec in _TABLE})


class Column(NamedTuple):
    """What a column says of n samples: ``names[codes[i]]``; code −1 where it says nothing."""

    codes: np.ndarray
    names: tuple[str, ...]


@dataclass(frozen=True)
class ImageData:
    """A labelled set of images; training samples first, then the official test set.

    images: uint8 [n, H, W] grey or [n, H, W, 3]; labels: int64 [n], 0 … num_classes − 1;
    official_test: bool [n], all False where the set has no test set of its own;
    domain: int64 [n], where each sample comes from, or None;
    classes, domains: their names, where the data have some;
    columns: further columns, by which clients may be told apart;
    facts: where the data are from and what was done to them, for the provenance of runs;
    sha256: of all of these but name and facts. Make it with :func:`image_data`.
    """

    name: str
    images: np.ndarray
    labels: np.ndarray
    official_test: np.ndarray
    num_classes: int
    sha256: str
    domain: np.ndarray | None = None
    classes: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    columns: Mapping[str, Column] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


def image_data(
    name: str,
    images: np.ndarray,
    labels: np.ndarray,
    num_classes: int,
    official_test: np.ndarray | None = None,
    domain: np.ndarray | None = None,
    *,
    classes: tuple[str, ...] = (),
    domains: tuple[str, ...] = (),
    columns: Mapping[str, Column] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> ImageData:
    """Check the arrays, and add their hash.

    Raises ValueError for a wrong type or shape, for labels outside 0 … num_classes − 1, and for
    negative domains.
    """
    if official_test is None:
        official_test = np.zeros(len(labels), dtype=bool)
    grey = images.ndim == 3
    colour = images.ndim == 4 and images.shape[3] == 3
    if images.dtype != np.uint8 or not (grey or colour):
        raise ValueError(
            f"images of {name!r} must be uint8 [n, H, W] or [n, H, W, 3], "
            f"not {images.dtype} {list(images.shape)}"
        )
    if labels.shape != images.shape[:1] or official_test.shape != images.shape[:1]:
        raise ValueError(
            f"{name!r} has {len(images)} images, {len(labels)} labels and "
            f"{len(official_test)} test flags: there must be one of each per sample"
        )
    labels = labels.astype(np.int64)
    if len(labels) and not (labels.min() >= 0 and labels.max() < num_classes):
        raise ValueError(
            f"labels of {name!r} run from {labels.min()} to {labels.max()}, "
            f"declared are {num_classes} classes from 0 to {num_classes - 1}"
        )
    if domain is not None and (domain.shape != labels.shape or (domain < 0).any()):
        raise ValueError(
            f"{name!r} has {len(labels)} labels and {len(domain)} domains: there must be one per "
            "sample, counted from 0"
        )
    digest = hashlib.sha256(f"{list(images.shape)} {num_classes}".encode())
    for values, kind in ((images, "u1"), (labels, "<i8"), (official_test, "u1")):
        digest.update(np.ascontiguousarray(values, dtype=kind).data)
    if domain is not None:
        domain = domain.astype(np.int64)
        digest.update(np.ascontiguousarray(domain, dtype="<i8").data)
    # Sets without names and columns keep the hash that they always had.
    if classes or domains or columns:
        named = [classes, domains, {key: one.names for key, one in sorted((columns or {}).items())}]
        digest.update(json.dumps(named).encode())
        for _, column in sorted((columns or {}).items()):
            digest.update(np.ascontiguousarray(column.codes, dtype="<i8").data)
    return ImageData(
        name,
        images,
        labels,
        official_test.astype(bool),
        num_classes,
        digest.hexdigest(),
        domain,
        classes,
        domains,
        columns or {},
        facts or {},
    )


def dataset_spec(name: str) -> DatasetSpec:
    """The row of the table, or a ValueError that lists the known names."""
    if name not in DATASETS:
        raise ValueError(f"unknown data set {name!r}{hint(name, DATASETS)}")
    return DATASETS[name]


def load_dataset(name: str) -> ImageData:
    """Load a data set of the table by name.

    Raises ValueError for an unknown name or data that is not as declared, FileNotFoundError when
    the data cannot be found.
    """
    spec = dataset_spec(name)
    if name == "digits":
        return _digits(spec)
    if spec.domains:
        from fedsdg.data import domains

        return domains.MAKERS[name]()
    # Decoders are imported here: `fedsdg methods` and digits need neither pyarrow nor PIL.
    from fedsdg.data import stored_images

    folder = _local_folder(name)
    if folder is not None:
        parts = stored_images.read_folder(spec, folder)
    elif spec.hub_id is not None:
        parts = stored_images.read_hub(spec)
    else:
        raise FileNotFoundError(
            f"data set {name!r} is not on the hub: put its train.parquet and test.parquet into "
            f"a folder {name!r} and set {FOLDER_VARIABLE} to the folder above it"
        )
    images, labels, official_test, left_out = parts
    facts = {"left_out": list(left_out)} if left_out else None
    return image_data(name, images, labels, spec.num_classes, official_test, facts=facts)


def _local_folder(name: str) -> Path | None:
    root = os.environ.get(FOLDER_VARIABLE)
    if not root:
        return None
    if not Path(root).is_dir():
        raise FileNotFoundError(f"{FOLDER_VARIABLE} names {root!r}, which is no folder")
    folder = Path(root) / name
    return folder if folder.is_dir() else None


def _digits(spec: DatasetSpec) -> ImageData:
    from sklearn.datasets import load_digits

    bundle = load_digits()
    # 0 … 16 on-pixels per 4×4 block, spread over 0 … 255.
    images = np.rint(bundle.images * (255.0 / 16.0)).astype(np.uint8)
    return image_data(spec.name, images, bundle.target, spec.num_classes)
