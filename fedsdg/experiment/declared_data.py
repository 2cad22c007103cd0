"""The data sets of a config: names of the table, and one's own, which the config describes.

Never imports torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fedsdg.data.files import listing
from fedsdg.data.partition import large_enough
from fedsdg.data.sources import NUM_CLASSES, Source, built_in
from fedsdg.experiment import loading
from fedsdg.experiment.backbones.recipe import LETTERS
from fedsdg.experiment.loading import load_images, survey_of
from fedsdg.parts import make, mapping

#: As many clients as a column has values with enough samples.
ALL = "all"


def parse_datasets(entries: Sequence[Any]) -> tuple[tuple[str, ...], dict[str, Source]]:
    """The names of the data sets in the config's order, and the descriptions of one's own."""
    names: list[str] = []
    own: dict[str, Source] = {}
    for entry in entries:
        if isinstance(entry, str):
            name = entry
        else:
            described = own_data(entry)
            name = described.name
            if name in NUM_CLASSES:
                raise ValueError(
                    f"datasets: {name!r} is a data set of the benchmark; give yours another name"
                )
            own[name] = described
        if name in names:
            raise ValueError(f"datasets names {name!r} twice")
        names.append(name)
    return tuple(names), own


def own_data(entry: Any) -> Source:
    """Return a declaration from its mapping."""
    given = mapping(entry, "datasets entry")
    if "name" not in given:
        raise ValueError(f"datasets: the entry {entry!r} has no 'name'")
    made: Source = make(Source, given, f"datasets: {given['name']}")
    return made


def class_count(source: loading.Source) -> int:
    """How many classes a data set has."""
    if isinstance(source, str):
        return NUM_CLASSES[built_in(source).name]
    data = survey_of(source) if isinstance(source, Source) else load_images(source)
    return data.num_classes


def natural_clients(
    names: Sequence[str], own: Mapping[str, Source], skews: Sequence[str], min_samples: int
) -> int:
    """How many clients ``federation.clients: all`` are: values with enough training samples.

    Raises ValueError where no skew names a column, where a data set lacks it, and where columns or
    data sets differ in their numbers: paths and runs hold one number of clients.
    """
    columns = [skew.partition("~")[2] for skew in skews if skew.startswith("column~")]
    if not columns:
        raise ValueError(
            "federation.clients is all, but no skew says which column the clients are told apart "
            "by; add 'column~NAME' to skews, or give a number"
        )
    counts: dict[str, int] = {}
    for name in names:
        seen = survey_of(own[name]) if name in own else None
        known = seen.columns if seen else {}
        for column in columns:
            if column not in known:
                raise ValueError(
                    f"skew 'column~{column}': the data set {name!r} has no column {column!r} of "
                    "texts or whole numbers; its columns are "
                    f"{', '.join(map(repr, known)) or 'none'}"
                )
            assert seen is not None
            shared = known[column]._replace(codes=known[column].codes[~seen.test])
            counts[f"{name} by {column}"] = len(large_enough(shared, min_samples))
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{place}: {count}" for place, count in counts.items())
        raise ValueError(
            f"federation.clients is all, but that is a different number for each ({each}); make "
            "them experiments of their own"
        )
    count = next(iter(counts.values()))
    if count < 1:
        raise ValueError(
            f"federation.clients is all, but no value of {columns[0]!r} has {min_samples} samples; "
            "lower partition.min_samples"
        )
    return count


def all_clients(config: Mapping[str, Any]) -> int:
    """``natural_clients`` of a config that was checked by the schema alone."""
    names, own = parse_datasets(config["datasets"])
    least = (config.get("partition") or {}).get("min_samples", 12)
    return natural_clients(names, own, config["skews"], least)


def description(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What the division of a data set depends on besides its name: nothing for one of the table.

    Of one's own, its entry and which files there are.
    """
    own = parse_datasets(config["datasets"])[1].get(name)
    if own is None:
        return {}
    return {"data": asdict(own), "files": listing(own)}


def notes(own: Mapping[str, Source]) -> Iterator[str]:
    """Yield what a survey notes on each of one's own data sets, such as ignored files."""
    for declared in own.values():
        # The command that loads the set says what is wrong with it.
        with contextlib.suppress(OSError, ValueError):
            yield from (f"{declared.name}: {note}" for note in survey_of(declared).notes)


def remarks(own: Mapping[str, Source], name: str, backbone: Mapping[str, Any]) -> Iterator[str]:
    """What a person should know who brings images of their own to a backbone.

    ``backbone``: its name and its entry of the config's ``backbones``.
    """
    size = backbone.get("image_size")
    for described in own.values():
        learned = backbone.get("source", "pretrain") == "pretrain"
        if learned and backbone.get("data", LETTERS) == LETTERS:
            channels = "grey" if backbone.get("channels") == 1 else "colour"
            yield (
                f"hint: the backbone {name!r} has learned from rendered letters, and the images of "
                f"{described.name!r} are brought to its {size}×{size} {channels} pixels; for "
                "photographs take one that has learned from photographs: see 'Photographs' in "
                "docs/own-data.md, which also says how to have it offline"
            )
        if size is not None and described.size is not None and described.size < size:
            yield (
                f"hint: images of {described.name!r} are stored at {described.size} pixels and "
                f"enlarged to the {size} of the backbone {name!r}; a larger size keeps what they "
                "show"
            )
