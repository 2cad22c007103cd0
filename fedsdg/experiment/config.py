"""The experiment as frozen dataclasses: checked in full. Never imports torch."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fedsdg.data import sources
from fedsdg.data.partition import PartitionSettings
from fedsdg.experiment.backbones.recipe import parse_backbone
from fedsdg.experiment.conditions import Conditions, parse_conditions
from fedsdg.experiment.config_values import (
    listed,
    parse_name,
    parse_pages,
    parse_seeds,
    parse_skews,
    parse_text,
    parse_tuned,
)
from fedsdg.experiment.consistency import check_consistency
from fedsdg.experiment.declared_data import ALL, natural_clients, parse_datasets
from fedsdg.experiment.kernel import kernel_of
from fedsdg.experiment.loading import Source
from fedsdg.experiment.method_entries import (
    MethodConfig,
    method_entry,
    parse_training,
    with_tuned,
)
from fedsdg.experiment.run_config import RunConfig
from fedsdg.experiment.scenarios import Scenario, parse_scenarios
from fedsdg.experiment.search_section import parse_search
from fedsdg.experiment.search_space import SearchConfig
from fedsdg.experiment.sections import (
    AdaptersConfig,
    FederationConfig,
    TrainingConfig,
)
from fedsdg.files import hint
from fedsdg.files.places import RUN_BELOW, joined_setting, split_setting
from fedsdg.methods.chosen import name_of, undecayed
from fedsdg.methods.plugins import (
    CHOICES,
    OfferedData,
    Plugin,
    find_plugin,
    lender,
    offered,
    offered_choices,
    offered_datasets,
)
from fedsdg.parts import Declared, Range, make, mapping

#: How often a skew that is in no config is drawn again until every client has enough samples.
PATIENCE = 20_000

#: How often a run saves its state.
SECONDS = Declared(
    "checkpoint_seconds",
    float,
    30.0,
    "a run saves its state after the first round that ends so many seconds after it was last "
    "saved (0: after every round), and at SIGINT and SIGTERM; the same command then goes on from "
    "there. No part of a run's hash",
    Range(0),
)

TRAINABLE = Declared(
    "trainable",
    str,
    "adapters",
    "`adapters` of a frozen backbone, or `full`: all parameters of a small CNN, from scratch, on "
    "the data set's own images; `backbone` and `adapters` are then not read, and methods that keep "
    "a private branch of adapters are refused",
    choices=("adapters", "full"),
)


@dataclass(frozen=True)
class Config:
    """A whole experiment: the grid datasets × skews × methods × seeds and what all runs share."""

    experiment: str
    datasets: tuple[str, ...]
    backbone: str
    backbones: Mapping[str, Mapping[str, Any]]
    skews: tuple[str, ...]
    seeds: tuple[int, ...]
    federation: FederationConfig
    partition: PartitionSettings
    training: TrainingConfig
    adapters: AdaptersConfig
    methods: tuple[MethodConfig, ...]
    search: SearchConfig
    #: No part of a run: when its state is saved changes no result.
    checkpoint_seconds: float
    conditions: Conditions = field(default_factory=Conditions)
    scenarios: Mapping[str, Scenario] = field(default_factory=dict)
    #: Where further methods are from.
    plugins: tuple[Plugin, ...] = ()
    #: What is shown of the runs, by the names of fedsdg.analysis; None shows the usual.
    tables: tuple[str, ...] | None = None
    figures: tuple[str, ...] | None = None
    #: Data sets that the config describes itself, by name.
    own: Mapping[str, sources.Source] = field(default_factory=dict)
    #: A sentence on what it is, said of one file; it changes nothing.
    about: str = ""
    #: The file of values that a search found, which are laid over the entries of ``methods``, and
    #: the labels of entries for which it has none.
    tuned: tuple[str, ...] = ()
    untuned: frozenset[str] = frozenset()
    #: Where the experiment's ``results`` lie; what calls a command or function chooses it.
    root: Path = field(default_factory=Path)

    def source(self, dataset: str) -> Source:
        """What a data set is loaded by: its name, its description, or the plugin it is from."""
        plugin = offered_datasets(self.plugins).get(dataset)
        if plugin is not None and dataset not in self.own:
            return OfferedData(dataset, plugin)
        return self.own.get(dataset, dataset)

    @property
    def settings(self) -> tuple[str, ...]:
        """The skews, each under each scenario as ``{skew}@{scenario}`` where there are any."""
        if not self.scenarios:
            return self.skews
        return tuple(joined_setting(skew, name) for skew in self.skews for name in self.scenarios)

    def scenario(self, setting: str) -> Scenario:
        """What is the case in a setting."""
        _, name = split_setting(setting)
        if not name:
            return Scenario(self.federation, self.training, self.conditions, {})
        return self.scenarios[name]

    #: "adapters" of a frozen backbone and the head | "full": all parameters of a small CNN.
    trainable: str = "adapters"

    def method(self, label: str) -> MethodConfig:
        """The method with this label, or a ``ValueError`` that lists the labels."""
        for method in self.methods:
            if method.label == label:
                return method
        labels = [method.label for method in self.methods]
        raise ValueError(f"the config has no method {label!r}{hint(label, labels)}")

    def including(self, method: str | None, dataset: str | None, setting: str | None) -> Config:
        """The grid, to which these are added where it lacks them: a method with its defaults.

        A skew that the config was not made for is drawn up to ``PATIENCE`` times, so that a strong
        one finds its clients: of twenty on the digits with α = 0.05 one draw in 700 does.

        Raises ``ValueError`` for names that mean nothing, and for what cannot be run here.
        """
        labels = [one.label for one in self.methods]
        added = self
        if method is not None and method not in labels:
            if method not in (known := offered(self.plugins)):
                raise ValueError(f"unknown method {method!r}{hint(method, [*labels, *known])}")
            added = replace(added, methods=(*self.methods, method_entry(method, self.plugins)))
        if dataset is not None and dataset not in self.datasets:
            if dataset not in (offers := offered_datasets(self.plugins)):
                known_data = list(dict.fromkeys([*self.datasets, *offers]))
                raise ValueError(f"unknown data set {dataset!r}{hint(dataset, known_data)}")
            added = replace(added, datasets=(*self.datasets, dataset))
        if setting is not None and setting not in self.settings:
            skew, scenario = split_setting(setting)
            if scenario not in (self.scenarios or ("",)):
                ways = [joined_setting(skew, name) for name in self.scenarios] or [skew]
                raise ValueError(f"--skew is {setting!r}, but must be one of {', '.join(ways)}")
            parse_skews([skew])
            if skew not in self.skews:
                retries = max(self.partition.retries, PATIENCE)
                added = replace(
                    added,
                    skews=(*self.skews, skew),
                    partition=replace(self.partition, retries=retries),
                )
        if added is not self:
            for case in cases(added):
                check_consistency(case)
        return added

    def run_folders(self) -> list[str]:
        """The folders of all runs of the grid, below ``results/runs/{experiment}``."""
        cells = itertools.product(self.datasets, self.settings, self.methods, self.seeds)
        return [
            RUN_BELOW.format(
                dataset=dataset,
                clients=self.federation.clients,
                setting=setting,
                method=method.label,
                seed=seed,
            )
            for dataset, setting, method, seed in cells
        ]

    def identity(
        self, dataset: str, setting: str, method: MethodConfig, seed: int
    ) -> dict[str, Any]:
        """What names one run of the grid in its ``result.json``."""
        _, scenario = split_setting(setting)
        return {
            "experiment": self.experiment,
            "dataset": dataset,
            "clients": self.federation.clients,
            "skew": setting,
            **({"scenario": scenario} if scenario else {}),
            "method": method.type,
            "label": method.label,
            "seed": seed,
            **self._titles(setting, method),
        }

    def _titles(self, setting: str, method: MethodConfig) -> dict[str, str]:
        """How what is from plugins is called in print, which analysis cannot know otherwise."""
        titles = {"title": method.row.title} if method.plugin else {}
        attack = self.scenario(setting).conditions.attack
        if attack is not None and attack.plugin is not None:
            titles["attack_title"] = attack.kind.title
        return titles

    def run(self, dataset: str, setting: str, method: MethodConfig, seed: int) -> RunConfig:
        """The run of one cell of the grid and one seed; ``ValueError`` for an untuned row."""
        if method.label in self.untuned:
            raise ValueError(
                f"methods: {method.label!r} has no tuned values in {self.tuned[-1]}; make them "
                f"with 'fedsdg search --only {method.label}' and this config, or set eta_g in its "
                "entry"
            )
        case = self.scenario(setting)
        training = {**asdict(case.training), **method.row.training}
        if method.row.optimiser is not None:
            training["optimiser"] = method.row.optimiser
        training |= method.overrides
        names = {key: name_of(training[key]) for key in CHOICES}
        lenders = {key: lender(key, name, self.plugins) for key, name in names.items()}
        if method.row.undecayed:
            row = offered_choices("optimiser", self.plugins)[names["optimiser"]]
            training["optimiser"] = undecayed(training["optimiser"], row)
        made = TrainingConfig(**training)
        kernel = kernel_of(self.trainable, made, self.adapters, self.backbones[self.backbone])
        return RunConfig(
            dataset=dataset,
            backbone=self.backbone,
            skew=split_setting(setting)[0],
            seed=seed,
            federation=case.federation,
            partition=self.partition,
            training=replace(made, kernel=kernel),
            adapters=self.adapters,
            method=method.type,
            parameters=method.under(case.parameters),
            conditions=case.conditions,
            plugin=method.plugin,
            trainable=self.trainable,
            borrowed={key: plugin for key, plugin in lenders.items() if plugin is not None},
        )


def _plugins(value: Any) -> tuple[Plugin, ...]:
    places = listed(value, "plugins") if value != [] else []
    for place in places:
        if not isinstance(place, str) or not place:
            raise ValueError(f"plugins: {place!r} is neither a file nor the name of a plugin")
    return tuple(find_plugin(place) for place in places)


def parse_config(raw: Any) -> Config:
    """Check a config given as plain mappings and return it, or raise ``ValueError``."""
    known = {entry.name for entry in fields(Config)} - {"own", "root", "untuned"}
    given = mapping(raw, "the config")
    for key in given:
        if key not in known:
            raise ValueError(f"the config has an unknown key {key!r}{hint(key, sorted(known))}")
    for key in ("experiment", "datasets", "backbone", "backbones", "skews", "seeds", "methods"):
        if key not in given:
            raise ValueError(f"the config lacks the key {key!r}")
    plugins = _plugins(given.get("plugins", []))
    methods = tuple(method_entry(entry, plugins) for entry in listed(given["methods"], "methods"))
    labels = [method.label for method in methods]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"methods: two entries are called {label!r}; give one a 'name'")
    seeds = parse_seeds(given["seeds"], "seeds")
    datasets, own = parse_datasets(
        [
            entry if isinstance(entry, Mapping) else parse_name(entry, "datasets: entry")
            for entry in listed(given["datasets"], "datasets")
        ]
    )
    skews = parse_skews(given["skews"])
    partition = make(PartitionSettings, given.get("partition", {}), "partition")
    federation = mapping(given.get("federation", {}), "federation")
    if federation.get("clients") == ALL:
        clients = natural_clients(datasets, own, skews, partition.min_samples)
        given = {**given, "federation": {**federation, "clients": clients}}
    backbones = {
        parse_name(name, "backbones: name"): mapping(entry, f"backbones.{name}")
        for name, entry in mapping(given["backbones"], "backbones").items()
    }
    for name, entry in backbones.items():
        parse_backbone(entry, f"backbones.{name}")
    search = parse_search(given.get("search", {}), seeds, methods, plugins)
    tuned = parse_tuned(given.get("tuned"))
    untuned: frozenset[str] = frozenset()
    if tuned:
        methods, untuned = with_tuned(methods, tuned, search.space, plugins)
    config = Config(
        experiment=parse_name(given["experiment"], "experiment"),
        datasets=datasets,
        backbone=parse_name(given["backbone"], "backbone"),
        backbones={name: dict(entry) for name, entry in backbones.items()},
        skews=skews,
        seeds=seeds,
        federation=make(FederationConfig, given.get("federation", {}), "federation"),
        partition=partition,
        training=parse_training(given.get("training", {}), plugins, "training"),
        adapters=make(AdaptersConfig, given.get("adapters", {}), "adapters"),
        methods=methods,
        search=search,
        tuned=tuned,
        untuned=untuned,
        checkpoint_seconds=SECONDS.check(
            given.get("checkpoint_seconds", 30.0), "checkpoint_seconds"
        ),
        conditions=parse_conditions(given.get("conditions"), plugins=plugins),
        scenarios=parse_scenarios(given.get("scenarios") or {}, given, methods, plugins),
        plugins=plugins,
        trainable=TRAINABLE.check(given.get("trainable", "adapters"), "trainable"),
        tables=parse_pages(given, "tables"),
        figures=parse_pages(given, "figures"),
        own=own,
        about=parse_text(given.get("about", ""), "about"),
    )
    for case in cases(config):
        check_consistency(case)
    return config


def cases(config: Config) -> list[Config]:
    """The config as it is under each scenario."""
    cases = []
    for setting in config.settings:
        case = config.scenario(setting)
        methods = tuple(
            replace(one, parameters=one.under(case.parameters)) for one in config.methods
        )
        cases.append(
            replace(
                config,
                federation=case.federation,
                training=case.training,
                conditions=case.conditions,
                methods=methods,
            )
        )
    return cases
