"""The data sets of a config: names, or a user's own images, and clients that their columns tell."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from fedsdg.config import plugins
from fedsdg.data.sources import DATASETS, Source
from fedsdg.errors import ConfigError, hint, shortened


def read_dataset(given: Any) -> str | Source:
    """Return a data set: its name, or the description of a user's own images."""
    known = [*DATASETS, *plugins.DATASETS]
    if isinstance(given, Mapping | Source):
        source = Source.read(given)
        if source.name in known:
            raise ConfigError(f"is {source.name!r}, which is a data set already; rename yours")
        return source
    if not isinstance(given, str) or given not in known:
        raise ConfigError(f"names no known data set: {shortened(given)}{hint(given, known)}")
    return given


def dataset_name(dataset: str | Source) -> str:
    """Return the name of a data set."""
    return dataset if isinstance(dataset, str) else dataset.name


def natural_clients(
    datasets: Sequence[str | Source], skews: Sequence[str], min_samples: int
) -> int:
    """Return how many clients a natural partition has.

    Args:
        datasets: Names, or descriptions of a user's own images, which alone have columns.
        skews: Those of the config.
        min_samples: Training samples that a client needs.

    Raises:
        ConfigError: No skew names a column, a data set lacks it, or columns and data sets differ in
            their numbers: paths and runs hold one number of clients.
    """
    from fedsdg.data.partition import large_enough
    from fedsdg.data.reading import survey

    place = "federation.clients"
    columns = [skew.partition("~")[2] for skew in skews if skew.startswith("column~")]
    if not columns:
        raise ConfigError(
            "is all, but no skew says which column the clients are told apart by; add "
            "'column~NAME' to skews, or give a number",
            place,
        )
    counts: dict[str, int] = {}
    for dataset, column in itertools.product(datasets, columns):
        surveyed = None if isinstance(dataset, str) else survey(dataset)
        known = surveyed.columns if surveyed else {}
        name = dataset_name(dataset)
        if surveyed is None or column not in known:
            raise ConfigError(
                f"is all, but the data set {name!r} has no column {column!r} of texts or whole "
                f"numbers; its columns are {', '.join(map(repr, known)) or 'none'}",
                place,
            )
        trained = known[column]._replace(codes=known[column].codes[~surveyed.test])
        counts[f"{name} by {column}"] = len(large_enough(trained, min_samples))
    if len(set(counts.values())) > 1:
        numbers = ", ".join(f"{count} for {name}" for name, count in counts.items())
        raise ConfigError(f"is all, which is {numbers}; make them experiments of their own", place)
    count = next(iter(counts.values()))
    if count < 1:
        lack = f"no value of {columns[0]!r} has {min_samples} samples"
        raise ConfigError(f"is all, but {lack}; lower partition.min_samples", place)
    return count
