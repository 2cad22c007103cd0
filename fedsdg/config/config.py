"""A whole experiment: the grid data sets x skews x methods x seeds, and what all runs share.

Files become one mapping (``layers``), which ``Config.read`` checks in full. ``cases`` reads it once
more for each scenario, with the scenario's mappings laid over; ``runs`` yields all runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, PrivateAttr

from fedsdg.config import consistency, plugins
from fedsdg.config.backbones import LETTERS, Backbone
from fedsdg.config.entries import Entry, read_entries, with_tuned
from fedsdg.config.run import Run
from fedsdg.config.scenarios import SECTIONS, Scenario
from fedsdg.config.search import Axis, Search, read_space
from fedsdg.config.sections import Adapters, Conditions, Federation, Training
from fedsdg.config.values import Name, Names, Seeds, Skews, Texts, require_folders, without_null
from fedsdg.data.partition import PartitionSettings
from fedsdg.data.sources import DATASETS, Source
from fedsdg.errors import ConfigError, remark, require_one_of
from fedsdg.parts import Chosen, Natural, NonNegative, Part, Several

MOST_DRAWS = 20_000
"""Draws of a partition for a skew that the config was not made for, until clients have enough."""


def _loaded(places: tuple[str, ...]) -> tuple[str, ...]:
    for place in places:
        plugins.load(place)
    return places


def _read_dataset(given: Any) -> str | Source:
    """Return a data set: its name, or the description of a user's own images."""
    known = [*DATASETS, *plugins.DATASETS]
    if isinstance(given, Mapping | Source):
        source = Source.read(given)
        if source.name in known:
            raise ConfigError(f"is {source.name!r}, which is a data set already; rename yours")
        return source
    require_one_of(known, given, "names no known data set:")
    return str(given)


def _name(dataset: str | Source) -> str:
    return dataset if isinstance(dataset, str) else dataset.name


class Config(Part):
    """A whole experiment."""

    experiment: Name
    "part of every path of its results"
    about: str = ""
    "a sentence for `fedsdg arenas`; it changes nothing"
    plugins: Annotated[tuple[str, ...], Field(strict=False), AfterValidator(_loaded)] = ()
    "files or modules with further methods, parts and data sets"
    datasets: Several[Annotated[str | Source, PlainValidator(_read_dataset)]]
    "names, or descriptions of your own images"
    skews: Skews
    "how clients differ in what they hold; quoted"
    seeds: Seeds
    "each determines partition, cohorts, initial values and batches of a run"
    partition_seed: Natural | None = None
    "the partition of this seed for all runs; null: of the seed of each run"
    trainable: Literal["adapters", "full"] = "adapters"
    """`adapters` of a frozen backbone, or `full`: all parameters of a small CNN, from scratch, on
    the data set's own images; `backbone` and `adapters` are then not read, and methods that keep a
    private branch of adapters are refused"""
    backbone: Name
    "the entry of `backbones` that runs start from"
    backbones: Annotated[
        dict[Name, Annotated[Backbone, Chosen(Backbone, "source", "pretrain")]],
        Field(min_length=1),
    ]
    "recipes by name; `source` says where the weights come from"
    federation: Federation = Federation()
    "clients, cohorts and rounds"
    partition: PartitionSettings = PartitionSettings()
    "how samples are divided among clients"
    training: Training = Training()
    "local training"
    adapters: Adapters = Adapters()
    "LoRA adapters of the frozen backbone"
    conditions: Annotated[Conditions, BeforeValidator(lambda given: given or {})] = Conditions()
    "attacks, dropout, noise and other conditions of the runs"
    scenarios: Annotated[
        dict[Name, Scenario],
        BeforeValidator(without_null, json_schema_input_type=dict[Name, Scenario | None] | None),
    ] = Field(default_factory=dict)
    "name → what it changes; null removes one of a file below"
    methods: Annotated[tuple[Entry, ...], PlainValidator(read_entries)]
    "names, or mappings `{type: …, name: …, parameter: …}`"
    tuned: Texts = ()
    "files of values that searches found, laid over the entries of `methods`, the last one last"
    search: Search = Search()
    "hyper-parameters that `fedsdg search` tries"
    checkpoint_seconds: NonNegative = 30.0
    """a run saves its state after the first round that ends so many seconds after it was last saved
    (0: after every round), and at SIGINT and SIGTERM. No part of a run's address"""
    tables: Names | None = None
    "the tables to make; null: the usual ones"
    figures: Names | None = None
    "the figures to make; null: the usual ones"

    _raw: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def read(cls, given: Any, place: str = "") -> Self:
        """Check a config given as plain mappings, in full and under every scenario.

        Args:
            given: The config.
            place: Where it stands, for the error.

        Raises:
            ConfigError: In one sentence, what is wrong, where, and the remedy.
        """
        try:
            config = super().read(given, place)
        except ConfigError as error:
            raise ConfigError(error.text, error.place or "the config") from None
        if config.tuned:
            methods = with_tuned(config.methods, config.tuned, config.search.space)
            config = config.replaced(methods=methods)
        config._raw.update(given, methods=config.methods, tuned=[])
        if config.scenarios:
            _ = config.cases  # Each is read by itself.
        else:
            consistency.require_consistent(config)
        return config

    def check_fields(self) -> None:
        """Check values that do not go together, scenarios aside."""
        require_folders("datasets", map(_name, self.datasets))
        require_folders("methods", [entry.label for entry in self.methods])
        for place in ("skews", "backbones", "scenarios"):
            require_folders(place, getattr(self, place))
        require_one_of(self.backbones, self.backbone, "names none of 'backbones':", "backbone")
        if shared := set(self.search.seeds) & set(self.seeds):
            raise ConfigError(
                f": seed {min(shared)} belongs to the grid; search on other seeds, or the "
                "comparison would be tuned on what it reports",
                "search.seeds",
            )
        if self.trainable == "full":
            consistency.require_without_backbone(self)

    @property
    def sources(self) -> dict[str, str | Source]:
        """The data sets by name."""
        return {_name(dataset): dataset for dataset in self.datasets}

    @property
    def untuned(self) -> list[str]:
        """The labels of entries that lack the values of their search."""
        return [entry.label for entry in self.methods if entry.lacking]

    @cached_property
    def space(self) -> dict[str, dict[str, Axis]]:
        """The axes of the search, by label and parameter."""
        return read_space(self.search.space, self.methods)

    @cached_property
    def cases(self) -> dict[str, Config]:
        """The config as it is under each scenario, by name; under "" if there are none."""
        if not self.scenarios:
            return {"": self}
        return {name: self._under(name) for name in self.scenarios}

    def _under(self, name: str) -> Config:
        """Return the config under a scenario; errors in what it changes are at its place."""
        raw = self.scenarios[name].laid_over(self._raw, self.methods, name)
        try:
            return type(self).read(raw)
        except ConfigError as error:
            if error.place.partition(".")[0] not in SECTIONS:
                raise
            raise error.within(f"scenarios.{name}") from None

    @property
    def settings(self) -> tuple[str, ...]:
        """The skews, each under each scenario as ``{skew}@{scenario}`` if there are any."""
        names = [f"@{name}" for name in self.scenarios] or [""]
        return tuple(map("".join, itertools.product(self.skews, names)))

    def print_remarks(self) -> None:
        """Print a line for each data set that the backbone, which knows letters, may not suit."""
        data = getattr(self.backbones[self.backbone], "data", None)
        for dataset in self.datasets:
            if isinstance(dataset, Source) and data == LETTERS and self.trainable == "adapters":
                remark(
                    f"the backbone {self.backbone!r} has learned from rendered letters; if images "
                    f"of {dataset.name!r} are photographs, take one that has learned from "
                    "photographs: 'Photographs' in docs/own-data.md"
                )

    def method(self, label: str) -> Entry:
        """Return the entry of a label, or raise ConfigError that lists the labels."""
        entries = {entry.label: entry for entry in self.methods}
        require_one_of(entries, label, "the config has no method")
        return entries[label]

    def including(self, method: str | None, dataset: str | None, setting: str | None) -> Config:
        """Return the config extended by what it does not list.

        A skew that the config was not made for is drawn up to ``MOST_DRAWS`` times.

        Args:
            method: A label, or the name of a method; None: none is added.
            dataset: Its name.
            setting: A skew, or ``{skew}@{scenario}``.

        Raises:
            ConfigError: A name means nothing, or cannot be run here.
        """
        raw = dict(self._raw)
        if method not in (None, *(entry.label for entry in self.methods)):
            raw["methods"] = [*raw["methods"], method]
        if dataset not in (None, *self.sources):
            raw["datasets"] = [*raw["datasets"], dataset]
        skew, _, scenario = (setting or self.settings[0]).partition("@")
        if scenario not in (tuple(self.scenarios) or ("",)):
            ways = ", ".join(f"{skew}@{name}" for name in self.scenarios) or skew
            raise ConfigError(f"--skew is {setting!r}, but must be one of {ways}")
        if skew not in self.skews:
            raw["skews"] = [*raw["skews"], skew]
            raw["partition"] = self.partition_of(skew).overrides()
        return self if raw == self._raw else Config.read(raw)

    def partition_of(self, skew: str) -> PartitionSettings:
        """Return how samples are divided; a skew not of the config is drawn up to MOST_DRAWS times.

        Args:
            skew: Any.
        """
        most = self.partition.retries if skew in self.skews else MOST_DRAWS
        return self.partition.replaced(retries=max(self.partition.retries, most))

    def runs(self) -> Iterator[Run]:
        """Yield all runs of the grid, seed by seed."""
        cells = itertools.product(self.seeds, self.sources, self.settings, self.methods)
        for seed, dataset, setting, entry in cells:
            yield self.run(dataset, setting, entry, seed)

    def run(self, dataset: str, setting: str, entry: Entry, seed: int) -> Run:
        """Return one run.

        Args:
            dataset: Its name.
            setting: A skew, or ``{skew}@{scenario}``.
            entry: One of the config's, perhaps with other values.
            seed: Of the grid or of a search.

        Raises:
            ConfigError: The config has a search for the entry, whose values are not there yet.
        """
        if entry.lacking:
            raise ConfigError(
                f"has no tuned values in {entry.lacking}; make them with 'fedsdg search --only "
                f"{entry.label}' and this config, or set eta_g in its entry",
                f"methods.{entry.label}",
            )
        skew, _, scenario = setting.partition("@")
        case = self.cases[scenario]
        shared = ("trainable", "backbone", "federation", "partition", "adapters", "conditions")
        return Run(
            dataset=dataset,
            skew=skew,
            scenario=scenario,
            seed=seed,
            partition_seed=seed if case.partition_seed is None else case.partition_seed,
            method=self.scenarios[scenario].entry(entry) if scenario else entry,
            training=case._training_of(entry),
            **{key: getattr(case, key) for key in shared},
        )

    def _training_of(self, entry: Entry) -> Training:
        """Return what the config, the row and the entry say, the later over the earlier."""
        row = entry.row
        changed = dict(row.training)
        if row.optimiser is not None:
            changed["optimiser"] = row.optimiser
        changed |= entry.training
        training = self.training.replaced(**changed) if changed else self.training
        optimiser = training.optimiser
        if row.undecayed and "weight_decay" in type(optimiser).model_fields:
            training = training.replaced(optimiser=optimiser.replaced(weight_decay=0.0))
        if training.kernel != "auto":
            return training
        kernel = "compiled" if consistency.compiled(self, training) else "torch"
        return training.replaced(kernel=kernel)
