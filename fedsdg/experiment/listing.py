"""What there is: data sets, and whether they are here; arenas. Never imports torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fedsdg.config import plugins
from fedsdg.config.config import Config
from fedsdg.config.data_sets import dataset_name
from fedsdg.config.layers import load
from fedsdg.data.files import FOLDER_VARIABLE, find_folder
from fedsdg.data.reading import load as load_images
from fedsdg.data.reading import survey
from fedsdg.data.rows import read_rows
from fedsdg.data.sources import DATASETS, NUM_CLASSES, Source
from fedsdg.files.places import ARENAS


class DataSet(NamedTuple):
    """A data set; what the data alone could say is None if they are not here."""

    name: str
    classes: int | None
    images: int | None
    size: int | None
    "height and width in pixels"
    channels: int | None
    "1 grey, 3 colour"
    here: bool
    "whether it can be loaded without a network"
    place: str
    "where it comes from, or why it cannot be had; ignored files"


def data_sets(config: Config | None = None) -> Iterator[DataSet]:
    """Yield the built-in data sets, those of plugins, and those that a config describes.

    Raises:
        FileNotFoundError: $FEDSDG_DATA names no folder.
    """
    root = os.environ.get(FOLDER_VARIABLE)
    if root and not Path(root).is_dir():
        raise FileNotFoundError(f"{FOLDER_VARIABLE} names {root!r}, which is no folder")
    yield from map(_built_in, DATASETS.values())
    for name, loader in plugins.DATASETS.items():
        data = loader()
        channels = 1 if data.images.ndim == 3 else 3
        count, size = data.images.shape[:2]
        yield DataSet(name, data.num_classes, count, size, channels, True, "a plugin")
    for source in config.datasets if config is not None else ():
        if isinstance(source, Source):
            yield _described(source)


def _built_in(source: Source) -> DataSet:
    images: int | None = None
    place = f"the hub, {source.hub}, or $FEDSDG_DATA" if source.hub else "to be in $FEDSDG_DATA"
    if source.name == "digits":
        images = len(load_images(source).labels)
        place = "scikit-learn"
    else:
        try:
            folder = find_folder(source)
            if folder is not None:
                images = len(read_rows(source).where)
                place = str(folder)
        except (FileNotFoundError, ValueError):
            pass  # Files are missing; the place says what would bring them.
    classes = NUM_CLASSES[source.name]
    here = images is not None
    return DataSet(source.name, classes, images, source.size, source.channels, here, place)


def _described(source: Source) -> DataSet:
    place = source.folder or f"the hub, {source.hub}"
    try:
        data = survey(source)
    except OSError as error:
        return DataSet(source.name, None, None, source.size, source.channels, False, str(error))
    place = "; ".join([place, *data.notes])
    count = len(data.labels)
    return DataSet(source.name, data.num_classes, count, source.size, source.channels, True, place)


class Arena(NamedTuple):
    """An experiment with a published record, beside which other methods can be set."""

    name: str
    config: str
    "the config that describes it"
    about: str
    "a sentence on it"
    datasets: tuple[str, ...]
    clients: int
    methods: int
    rounds: int
    seeds: int


def arenas() -> Iterator[Arena]:
    """Yield the arenas of README."""
    for name, file in ARENAS.items():
        config = load([file])
        names = tuple(map(dataset_name, config.datasets))
        clients = int(config.federation.clients)
        sizes = (len(config.methods), config.federation.rounds, len(config.seeds))
        yield Arena(name, file, config.about, names, clients, *sizes)
