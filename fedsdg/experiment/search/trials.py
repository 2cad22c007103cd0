"""The trials of a search: which points of which methods are tried, where."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

from fedsdg.experiment.config import Config
from fedsdg.experiment.loading import Source
from fedsdg.experiment.method_entries import MethodConfig
from fedsdg.experiment.run_config import RunConfig
from fedsdg.experiment.search.local_steps import GATE_STEPS, least_gate_rate, training_sizes
from fedsdg.experiment.search_space import DIGITS, Interval, points, trial_count
from fedsdg.files import hint
from fedsdg.files.places import split_setting


@dataclass(frozen=True)
class Trial:
    """One point of a method's space."""

    method: MethodConfig
    number: int
    values: Mapping[str, Any]

    @property
    def title(self) -> str:
        named = " ".join(f"{key}={value}" for key, value in self.values.items())
        return f"{self.method.label} trial {self.number}: {named}"


@dataclass(frozen=True)
class TrialRun:
    """A trial on one data set, skew and seed, and where runs are kept."""

    trial: Trial
    dataset: str
    source: Source
    skew: str
    seed: int
    config: RunConfig
    store: Path
    backbone: Path | None
    checkpoint_seconds: float

    @property
    def title(self) -> str:
        return f"{self.trial.title}, {self.dataset} {self.skew} seed {self.seed}"

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """What an outcome is known by; the config's hash tells what was run from what is."""
        place = (self.dataset, self.skew, self.seed)
        return (self.trial.method.label, self.trial.number, *place, self.config.hash)


def resolved(config: Config) -> Config:
    """Return the config as it is searched: with every bound as a number, and nothing untuned.

    The bound on η_m is the largest over the cells that are searched of ``GATE_STEPS`` / (local
    steps of a median client over the run), rounded up. A method's own values are replaced by those
    of a trial, so none has to be tuned.

    Raises:
        ValueError: A range ends below its bound, or the clients of a cell have no samples.
        FileNotFoundError: There are no files from which to count a client's samples.
    """
    config = replace(config, untuned=frozenset())
    space = dict(config.search.space)
    # Counted where the search looks, not on the seeds of the grid.
    searched = replace(config, seeds=config.search.seeds)
    sizes_of = cache(partial(training_sizes, searched))
    for method in config.methods:
        axes = space.get(method.label, {})
        bounded = {n: a for n, a in axes.items() if isinstance(a, Interval) and a.bound}
        if not bounded:
            continue
        cells = product(config.datasets, searched_settings(config))
        rates = {cell: least_gate_rate(searched, method, *cell, sizes_of(*cell)) for cell in cells}
        cell = max(rates, key=rates.__getitem__)
        least = _rounded_up(rates[cell])
        for name, axis in bounded.items():
            if least >= axis.high:
                raise ValueError(
                    f"search.space.{method.label}.{name} ends at {axis.high:g}, but gates need "
                    f"{least:g} to move by {GATE_STEPS:g} in the steps of a median client "
                    f"({', '.join(cell)}); raise the end, or federation.rounds"
                )
        lifted = {name: replace(axis, low=least) for name, axis in bounded.items()}
        space[method.label] = {**axes, **lifted}
    return replace(config, search=replace(config.search, space=space))


def _rounded_up(value: float) -> float:
    """The least number of ``DIGITS`` significant digits that is not below."""
    unit = 10.0 ** (math.floor(math.log10(value)) - DIGITS + 1)
    return float(f"{math.ceil(value / unit) * unit:.{DIGITS}g}")


def trials_of(config: Config) -> list[Trial]:
    """The first trial of every method, then the second of every method, and so on.

    A search that is cut short has therefore tried all methods about equally often. Methods of the
    space that no entry of the config is called are left out. Raises ``ValueError`` where nothing
    is left to try.
    """
    found = []
    for method in config.methods:
        if method.label not in config.search.space:
            continue
        space = config.search.space[method.label]
        count = trial_count(config.search.trials, space)
        drawn = points(space, count, min(config.search.seeds), method.label)
        for number, values in enumerate(drawn):
            found.append(Trial(method.with_values(values), number, values))
    if not found:
        raise ValueError(
            "the config has nothing to search; say under search.space which values of which "
            "methods to try"
        )
    return sorted(found, key=lambda trial: trial.number)


def searched_settings(config: Config) -> list[str]:
    """The settings that count in the search.

    Raises ``ValueError`` for a skew to search on that the experiment does not have. A config that
    is laid over another keeps that one's, so it is no fault until a search is asked for.
    """
    wanted = config.search.skews or config.settings
    for skew in wanted:
        if skew not in (*config.skews, *config.settings):
            raise ValueError(
                f"search.skews: {skew!r} is no skew of the experiment{hint(skew, config.settings)}"
            )
    return [
        setting
        for setting in config.settings
        if setting in wanted or split_setting(setting)[0] in wanted
    ]


def trial_runs(
    config: Config,
    tried: Sequence[Trial],
    store: Path,
    backbone: Path | None,
    seeds: Sequence[int] | None = None,
) -> Iterator[TrialRun]:
    """Every trial on every skew and seed, one data set after another.

    ``seeds``: those of the search where there are none. Raises what ``searched_settings`` raises.
    """
    settings = searched_settings(config)
    for dataset in config.datasets:
        for trial in tried:
            for setting in settings:
                for seed in config.search.seeds if seeds is None else seeds:
                    yield TrialRun(
                        trial,
                        dataset,
                        config.source(dataset),
                        setting,
                        seed,
                        config.run(dataset, setting, trial.method, seed),
                        store,
                        backbone,
                        config.checkpoint_seconds,
                    )
