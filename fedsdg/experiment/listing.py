"""What there is: data sets, and whether they are here; arenas. Never imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedsdg.config import plugins
from fedsdg.config.config import Config
from fedsdg.config.layers import load
from fedsdg.data.files import find_folder
from fedsdg.data.reading import survey
from fedsdg.data.sources import DATASETS, NUM_CLASSES, Source
from fedsdg.files.places import ARENAS

Row = dict[str, Any]


def data_sets(config: Config | None = None) -> Iterator[Row]:
    """Yield a row for each data set: built-in ones, those of a config, those of plugins.

    A row has ``name``, ``classes``, ``images``, ``size`` (pixels), ``channels``, ``here`` (whether
    it can be loaded without a network) and ``place`` (where it is, or what would bring it). What
    only the data could say is None if they are not here.
    """
    own = [one for one in config.datasets if isinstance(one, Source)] if config else []
    yield from map(_described, [*DATASETS.values(), *own])
    for name, loader in plugins.DATASETS.items():
        try:
            data = loader()
        except (OSError, ValueError) as error:
            facts = dict.fromkeys(("classes", "images", "size", "channels"))
            yield {"name": name, **facts, "here": False, "place": str(error)}
            continue
        count, size = data.images.shape[:2]
        channels = 1 if data.images.ndim == 3 else 3
        row = {"name": name, "classes": data.num_classes, "images": count, "size": size}
        yield {**row, "channels": channels, "here": True, "place": "a plugin"}


def _described(source: Source) -> Row:
    row: Row = {"name": source.name, "classes": NUM_CLASSES.get(source.name), "images": None}
    row |= {"size": source.size, "channels": source.channels, "here": False}
    try:
        place = "scikit-learn" if source.name == "digits" else find_folder(source)
        if place is None:
            return {**row, "place": f"the hub, {source.hub}, or a folder in $FEDSDG_DATA"}
        data = survey(source)
    except (OSError, ValueError) as error:
        return {**row, "place": str(error)}
    row |= {"classes": data.num_classes, "images": len(data.labels), "here": True}
    return {**row, "place": "; ".join([str(place), *data.notes])}


def arenas() -> Iterator[Row]:
    """Yield a row for each arena of README: an experiment with a published record."""
    for name in ARENAS:
        config = load([name])
        yield {
            "name": name,
            "about": config.about,
            "datasets": ", ".join(config.sources),
            "clients": config.federation.clients,
            "rounds": config.federation.rounds,
            "methods": len(config.methods),
            "seeds": len(config.seeds),
        }
