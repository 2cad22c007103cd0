"""What data sets there are, and whether they are here. Never imports torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedsdg.data.files import FOLDER_VARIABLE, find_folder
from fedsdg.data.rows import read_rows
from fedsdg.data.sources import DATASETS, NUM_CLASSES, Source
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
    yield from map(_built_in, DATASETS.values())
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


def _built_in(source: Source) -> Offered:
    classes = NUM_CLASSES[source.name]
    if source.name == "digits":
        images: int | None = len(load_images("digits").labels)
        place = "scikit-learn's handwritten digits"
    else:
        images, place = _images_here(source)
    here = images is not None
    return Offered(source.name, classes, images, source.size, source.channels, here, place)


def _images_here(source: Source) -> tuple[int | None, str]:
    """How many images there are, None where files are missing, and where they are."""
    put = f"put into ${FOLDER_VARIABLE}"
    place = f"fetched from the hub, {source.hub}, or {put}" if source.hub else f"to be {put}"
    try:
        folder = find_folder(source)
        return (None, place) if folder is None else (len(read_rows(source).where), str(folder))
    except (FileNotFoundError, ValueError):
        return None, place


def _own(own: Source) -> Offered:
    place = own.folder or f"the hub, {own.hub}"
    try:
        known = survey_of(own)
    except OSError as error:
        return Offered(own.name, None, None, own.size, own.channels, False, place, str(error))
    note = "; ".join(known.notes)
    classes, count = known.num_classes, len(known.labels)
    return Offered(own.name, classes, count, own.size, own.channels, True, place, note)
