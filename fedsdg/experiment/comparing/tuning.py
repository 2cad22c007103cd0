"""The search of an arena for newcomers: as many trials, on the same seeds, as its rows had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fedsdg.experiment.comparing.newcomers import Newcomers
from fedsdg.experiment.config import Config
from fedsdg.experiment.grid import backbone_file
from fedsdg.experiment.search import search
from fedsdg.experiment.search_section import parse_search
from fedsdg.experiment.search_space import Axis
from fedsdg.files.places import SEARCH, filled
from fedsdg.methods.declared import methods


def tune(
    newcomers: Newcomers, config: Config, published: Config, store: Path, jobs: int
) -> Newcomers:
    """The newcomers with the best values that the search of the arena, ``published``, finds.

    A newcomer's space is what its config file says under ``search.space``; where it says nothing,
    the learning rate of θ_g over the range that the arena searches for methods of the same
    optimiser.
    """
    given = parse_search({"space": newcomers.space}, config.seeds, config.methods, config.plugins)
    space: dict[str, Mapping[str, Axis]] = {
        method.label: given.space.get(method.label) or _usual(published, method.row.optimiser)
        for method in config.methods
    }
    wanted = replace(config, search=replace(published.search, space=space))
    output = config.root / filled(SEARCH, experiment=config.experiment)
    found = search(wanted, store, backbone_file(config), output, jobs=jobs)
    for label, outcome in found["methods"].items():
        if outcome["best"] is None:
            raise ValueError(
                f"the search of {label!r} has no complete trial; give the command again"
            )
        newcomers = newcomers.of(label, outcome["best"]["parameters"])
    return newcomers


def _usual(published: Config, optimiser: str | None) -> dict[str, Axis]:
    """The axis of the rate that the arena searches for a method with this optimiser."""
    rows = methods()
    for label, axes in published.search.space.items():
        if set(axes) == {"eta_g"} and label in rows and rows[label].optimiser == optimiser:
            return dict(axes)
    raise ValueError(
        "the arena searches no rate for methods of this optimiser; say in search.space of your "
        "config file what is to be tried"
    )
