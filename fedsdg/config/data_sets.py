"""The data sets of a config: names, or a user's own images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsdg.config import plugins
from fedsdg.data.sources import DATASETS, Source
from fedsdg.errors import ConfigError, require_one_of


def read_dataset(given: Any) -> str | Source:
    """Return a data set: its name, or the description of a user's own images."""
    known = [*DATASETS, *plugins.DATASETS]
    if isinstance(given, Mapping | Source):
        source = Source.read(given)
        if source.name in known:
            raise ConfigError(f"is {source.name!r}, which is a data set already; rename yours")
        return source
    require_one_of(known, given, "names no known data set:")
    return str(given)


def dataset_name(dataset: str | Source) -> str:
    """Return the name of a data set."""
    return dataset if isinstance(dataset, str) else dataset.name
