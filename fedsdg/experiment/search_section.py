"""The section ``search`` of a config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from fedsdg.experiment.config_values import listed, parse_seeds
from fedsdg.experiment.method_entries import MethodConfig, settable
from fedsdg.experiment.search_space import TWO_STAGE, Axis, SearchConfig, parse_axis
from fedsdg.files import hint
from fedsdg.methods.plugins import (
    Plugin,
    find_row,
    offered,
)
from fedsdg.parts import Declared, Range, mapping


def parse_search(
    value: Any,
    grid_seeds: tuple[int, ...],
    methods: Sequence[MethodConfig],
    plugins: Sequence[Plugin],
) -> SearchConfig:
    """The section ``search``; its keys of ``space`` are labels of entries, or types of methods.

    Types, because a config may be laid over another whose ``methods`` it replaces: what no entry
    is called is searched by nobody, but it must be a method.
    """
    section = mapping(value, "search")
    known = [entry.name for entry in fields(SearchConfig)]
    for key in section:
        if key not in known:
            raise ValueError(f"search: unknown key {key!r}{hint(key, known)}")
    seeds = parse_seeds(section.get("seeds", [100]), "search.seeds")
    if shared := set(seeds) & set(grid_seeds):
        raise ValueError(
            f"search.seeds: seed {min(shared)} belongs to the grid; search on other seeds, "
            "or the comparison would be tuned on what it reports"
        )
    trials = section.get("trials")
    if trials != TWO_STAGE:
        trials = Declared("trials", int, range=Range(1), optional=True).check(
            trials, "search.trials"
        )
    elif len(seeds) < 2:
        raise ValueError(
            f"search.seeds is {list(seeds)}, but with trials: {TWO_STAGE} the best points of the "
            "first seed are tried again on the others; name further seeds"
        )
    rows = {method.label: method.row for method in methods}
    others = offered(plugins)
    space: dict[str, dict[str, Axis]] = {}
    for label, axes in mapping(section.get("space", {}), "search.space").items():
        where = f"search.space.{label}"
        if label not in rows and label not in others:
            raise ValueError(f"{where}: the config has no method {label!r}{hint(label, rows)}")
        row = rows[label] if label in rows else find_row(label, others[label])
        known_keys = settable(row, plugins)
        space[label] = {}
        for key, axis in mapping(axes, where).items():
            if key not in known_keys:
                raise ValueError(f"{where}: no parameter {key!r}{hint(key, known_keys)}")
            if axis is None:
                continue
            space[label][key] = parse_axis(axis, known_keys[key], f"{where}.{key}")
        if not space[label]:
            raise ValueError(f"{where} names no parameter; name one or remove it")
    skews = listed(section["skews"], "search.skews") if section.get("skews") else []
    return SearchConfig(seeds, trials, tuple(skews), space)
