"""What data sets there are, and whether they are here. Never imports torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedsdg.data.datasets import DATASETS, FOLDER_VARIABLE, DatasetSpec, load_dataset
from fedsdg.data.own_data import OwnData
from fedsdg.data.splits import listed
from fedsdg.experiment.config import Config
from fedsdg.experiment.loading import load_images, survey_of
from fedsdg.methods.plugins import offered_datasets


@dataclass(frozen=True)
class Offered:
    """A data set. ``images``, ``classes`` and ``size``: None where only the data would say it.

    ``size``: height and width in pixels; ``channels``: 1 grey, 3 colour. ``here``: whether it can
    be loaded without a network. ``place``: where it comes from, or what would bring it.
    """

    name: str
    classes: int | None
    images: int | None
    size: int | None
    channels: int | None
    here: bool
    place: str
    note: str = ""


def offered_data(config: Config | None = None) -> Iterator[Offered]:
    """The data sets of the package, then those that a config describes or its plugins bring.

    Raises ``FileNotFoundError`` where $FEDSDG_DATA names no folder.
    """
    root = os.environ.get(FOLDER_VARIABLE)
    if root and not Path(root).is_dir():
        raise FileNotFoundError(f"{FOLDER_VARIABLE} names {root!r}, which is no folder")
    for spec in DATASETS.values():
        yield _of_the_package(spec, Path(root) if root else None)
    if config is None:
        return
    for own in config.own.values():
        yield _own(own)
    for name, plugin in offered_datasets(config.plugins).items():
        if plugin is not None and name not in config.own:
            data = load_images(config.source(name))
            height, channels = data.images.shape[1], 1 if data.images.ndim == 3 else 3
            place = f"the plugin {plugin.place}"
            yield Offered(name, data.num_classes, len(data.labels), height, channels, True, place)


def _of_the_package(spec: DatasetSpec, root: Path | None) -> Offered:
    images, place, note = _images_here(spec, root), spec.note.removeprefix("from "), ""
    parts = [name for name in spec.domains if name in DATASETS]
    if parts:
        place, note = f"{' and '.join(parts)} together", ""
    elif spec.hub_id or spec.official_test:
        note = spec.note
        if images is not None:
            place = f"{root}/{spec.name}"
        elif spec.hub_id:
            place = f"fetched from the hub, {spec.hub_id}, or put into ${FOLDER_VARIABLE}"
        else:
            place = f"to be put into ${FOLDER_VARIABLE}/{spec.name}"
    here = images is not None
    return Offered(spec.name, spec.num_classes, images, spec.size, spec.channels, here, place, note)


def _images_here(spec: DatasetSpec, root: Path | None) -> int | None:
    """How many images there are, by the files' own word; None where files are missing."""
    parts = [name for name in spec.domains if name in DATASETS]
    if parts:
        counts = [_images_here(DATASETS[name], root) for name in parts]
        return None if None in counts else sum(count or 0 for count in counts)
    if spec.hub_id is None and not spec.official_test:
        # Those without a folder are all made of scikit-learn's digits.
        return len(load_dataset("digits").labels)
    if root is None:
        return None
    import pyarrow.parquet as pq

    from fedsdg.data.stored_images import split_files

    try:
        files, _ = split_files(spec, root / spec.name)
    except (OSError, ValueError):
        return None
    return sum(pq.read_metadata(file).num_rows for part in files.values() for file in part)


def _own(own: OwnData) -> Offered:
    place = own.folder or f"the hub, {own.hub}"
    try:
        known = survey_of(own)
    except OSError as error:
        return Offered(own.name, None, None, own.size, own.channels, False, place, str(error))
    classes, count = len(known.classes), len(known.labels)
    left_out = known.rows.left_out
    note = f"left out: {listed(left_out)}" if left_out else ""
    return Offered(own.name, classes, count, own.size, own.channels, True, place, note)
