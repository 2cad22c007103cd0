"""The trials of a search: which points of which methods are tried, where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsdg.experiment.config import Config
from fedsdg.experiment.loading import Source
from fedsdg.experiment.method_entries import MethodConfig
from fedsdg.experiment.run_config import RunConfig
from fedsdg.experiment.search_space import points
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

    @property
    def key(self) -> tuple[Any, ...]:
        """What an outcome is known by; the config's hash tells what was run from what is."""
        place = (self.dataset, self.skew, self.seed)
        return (self.trial.method.label, self.trial.number, *place, self.config.hash)


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
        drawn = points(space, config.search.trials, min(config.search.seeds), method.label)
        for number, values in enumerate(drawn):
            found.append(Trial(_with(method, values), number, values))
    if not found:
        raise ValueError(
            "the config has nothing to search; say under search.space which values of which "
            "methods to try"
        )
    return sorted(found, key=lambda trial: trial.number)


def _with(method: MethodConfig, values: Mapping[str, Any]) -> MethodConfig:
    """The entry with the trial's values in place of its own."""
    known = method.row.parameters
    own = {**method.parameters, **{k: v for k, v in values.items() if k in known}}
    return MethodConfig(
        method.type,
        method.label,
        own,
        {**method.overrides, **{k: v for k, v in values.items() if k not in known}},
        method.plugin,
    )


def trial_runs(
    config: Config, tried: Sequence[Trial], store: Path, backbone: Path | None
) -> Iterator[TrialRun]:
    """Every trial on every skew and search seed, one data set after another.

    Raises ``ValueError`` for a skew to search on that the experiment does not have. A config that
    is laid over another keeps that one's, so it is no fault until a search is asked for.
    """
    wanted = config.search.skews or config.settings
    for skew in wanted:
        if skew not in (*config.skews, *config.settings):
            raise ValueError(
                f"search.skews: {skew!r} is no skew of the experiment{hint(skew, config.settings)}"
            )
    settings = [
        setting
        for setting in config.settings
        if setting in wanted or split_setting(setting)[0] in wanted
    ]
    for dataset in config.datasets:
        for trial in tried:
            for setting in settings:
                for seed in config.search.seeds:
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
