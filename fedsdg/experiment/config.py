"""The experiment as frozen dataclasses: read, checked in full, and hashed. Never imports torch.

A config is one YAML or JSON file, or several merged in order. Every key is known, typed and
bounded; whatever is wrong is named with its place and its remedy.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from fedsdg.data.own_data import OwnData
from fedsdg.data.skew import parse_skew
from fedsdg.experiment.conditions import Conditions, parse_conditions
from fedsdg.experiment.declared_data import ALL, natural_clients, parse_datasets
from fedsdg.experiment.loading import Source
from fedsdg.experiment.primary import PrimaryComparison, parse_primary
from fedsdg.experiment.search_space import Axis, SearchConfig, parse_axis
from fedsdg.experiment.sections import (
    AdaptersConfig,
    FederationConfig,
    PartitionConfig,
    TrainingConfig,
)
from fedsdg.federation.contribution import check_players
from fedsdg.files import hint, sha256_json
from fedsdg.files.places import RUN_BELOW, joined_setting, split_setting
from fedsdg.methods.chosen import WEIGHT_DECAY, name_of, undecayed
from fedsdg.methods.declared import Row
from fedsdg.methods.plugins import (
    CHOICES,
    OfferedData,
    Plugin,
    find_plugin,
    find_row,
    lender,
    offered,
    offered_choices,
    offered_datasets,
)
from fedsdg.parts import Declared, Range, checked, declared, make, mapping, plain

#: Keys of ``training`` that a method's entry may set for itself.
OVERRIDES = ("optimiser", "loss", "eta_g", "eta_p", "eta_m", "private_optimiser", "refresh")
#: How often a skew that is in no config is drawn again until every client has enough samples.
PATIENCE = 20_000
SKEW = re.compile(
    r"dirichlet~(\d+(\.\d+)?|\.\d+)|mixed~0\.\d*[1-9]\d*~(?=.*[1-9])\d+(\.\d+)?"
    r"|quantity~(?=.*[1-9])\d+(\.\d+)?|classes~[1-9]\d*|domains"
    r"|column~[A-Za-z0-9][A-Za-z0-9_.-]*|iid"
)
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
_SCENARIO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
#: ValueError: dates and whole numbers that there are not, and bytes that are no text.
_NO_YAML = (yaml.YAMLError, ValueError, RecursionError)


@dataclass(frozen=True)
class MethodConfig:
    """A method of the grid: its row, its label in paths and tables, and all its parameters."""

    type: str
    label: str
    parameters: Mapping[str, Any]
    overrides: Mapping[str, Any]
    plugin: Plugin | None = None

    @property
    def row(self) -> Row:
        """What is known of the method."""
        return find_row(self.type, self.plugin)

    def under(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Its parameters in a scenario that sets some for all methods that have them."""
        known = self.row.parameters
        given = {key: value for key, value in parameters.items() if key in known}
        return {**self.parameters, **given}


@dataclass(frozen=True)
class Scenario:
    """What a scenario changes: whole sections, and parameters of all methods that have them."""

    federation: FederationConfig
    training: TrainingConfig
    conditions: Conditions
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class RunConfig:
    """One run: all its records depend on, but the bytes of data, backbone and own sources."""

    dataset: str
    backbone: str
    skew: str
    seed: int
    federation: FederationConfig
    partition: PartitionConfig
    training: TrainingConfig
    adapters: AdaptersConfig
    method: str
    parameters: Mapping[str, Any]
    conditions: Conditions = field(default_factory=Conditions)
    #: Where the method is from; None for the rows of the table.
    plugin: Plugin | None = None
    trainable: str = "adapters"
    #: Where optimiser and loss are from, if not from the package.
    borrowed: Mapping[str, Plugin] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain types only, ready for JSON, without what is null or what there is none of."""
        found = asdict(self)
        del found["conditions"], found["plugin"], found["borrowed"]
        found["parameters"] = {key: plain(value) for key, value in self.parameters.items()}
        found["adapters"]["start"] = self.adapters.start and self.adapters.start.sha256
        for section in ("federation", "training", "adapters", "parameters"):
            given = found[section].items()
            found[section] = {key: value for key, value in given if value is not None}
        if self.conditions:
            found["conditions"] = self.conditions.to_dict()
        if self.plugin:
            found["plugin"] = self.plugin.facts()
        if self.borrowed:
            found["borrowed"] = {key: plugin.facts() for key, plugin in self.borrowed.items()}
        # A key says nothing where it has no effect: runs keep the hashes they had before it.
        unused = ("trainable",) if self.trainable == "adapters" else ("backbone", "adapters")
        return {key: value for key, value in found.items() if key not in unused}

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON of the run."""
        return sha256_json(self.to_dict())


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
    partition: PartitionConfig
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
    #: What is compared with a verdict, named before anything is run.
    primary: tuple[PrimaryComparison, ...] = ()
    #: Data sets that the config describes itself, by name.
    own: Mapping[str, OwnData] = field(default_factory=dict)

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
            _skews([skew])
            if skew not in self.skews:
                retries = max(self.partition.retries, PATIENCE)
                added = replace(
                    added,
                    skews=(*self.skews, skew),
                    partition=replace(self.partition, retries=retries),
                )
        if added is not self:
            for case in cases(added):
                _check_consistency(case)
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
        """The run of one cell of the grid and one seed."""
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
        return RunConfig(
            dataset=dataset,
            backbone=self.backbone,
            skew=split_setting(setting)[0],
            seed=seed,
            federation=case.federation,
            partition=self.partition,
            training=TrainingConfig(**training),
            adapters=self.adapters,
            method=method.type,
            parameters=method.under(case.parameters),
            conditions=case.conditions,
            plugin=method.plugin,
            trainable=self.trainable,
            borrowed={key: plugin for key, plugin in lenders.items() if plugin is not None},
        )


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{where} is {value!r}, but must be a list with at least one entry")
    for position, entry in enumerate(value):
        if entry in value[:position]:
            raise ValueError(f"{where} names {entry!r} twice")
    return value


def _seeds(value: Any, where: str) -> tuple[int, ...]:
    check = Declared("seed", int, range=Range(0)).check
    return tuple(check(seed, f"{where}: seed") for seed in _list(value, where))


def _skews(value: Any) -> tuple[str, ...]:
    for skew in _list(value, "skews"):
        if not isinstance(skew, str) or not SKEW.fullmatch(skew):
            raise ValueError(
                f"skews: {skew!r} is not a skew; write 'dirichlet~0.1', 'classes~2', "
                "'column~writer' or 'iid'"
            )
        kind, _, number = skew.partition("~")
        if kind == "dirichlet" and not float(number) > 0:
            raise ValueError(f"skews: {skew!r} has α = {number}, but α must be greater than 0")
        try:
            parse_skew(skew)
        except ValueError as error:
            raise ValueError(f"skews: {error}") from error
    return tuple(value)


def _name(value: Any, where: str) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(
            f"{where} is {value!r}, but must be made of letters, digits, '.', '_', '+' and '-'"
        )
    return value


def _pages(given: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    """Names of tables or figures; an unknown one is named where it is to be made."""
    if key not in given:
        return None
    return tuple(_name(name, f"{key}: entry") for name in _list(given[key], key))


def method_entry(entry: Any, plugins: Sequence[Plugin] = ()) -> MethodConfig:
    """Check one entry of ``methods``: a name, or a mapping with ``type`` and parameters."""
    known_methods = offered(plugins)
    given = {"type": entry} if isinstance(entry, str) else dict(mapping(entry, "methods entry"))
    kind = str(given.pop("type", ""))
    if kind not in known_methods:
        if not kind:
            raise ValueError(f"methods: the entry {entry!r} has no 'type'")
        raise ValueError(f"methods: unknown method {kind!r}{hint(kind, known_methods)}")
    label = _name(given.pop("name", kind), f"methods: name of {kind}")
    row = find_row(kind, known_methods[kind])
    parameters = {key: one.default for key, one in row.parameters.items()}
    overrides = {}
    training = _training_keys(plugins)
    for key, value in given.items():
        where = f"methods: {label}.{key}"
        if key in row.parameters:
            parameters[key] = row.parameters[key].check(value, where)
        elif key in OVERRIDES:
            overrides[key] = training[key].check(value, where)
        else:
            known = [*row.parameters, *OVERRIDES]
            raise ValueError(f"methods: {label} has no parameter {key!r}{hint(key, known)}")
    return MethodConfig(kind, label, parameters, overrides, known_methods[kind])


def _plugins(value: Any) -> tuple[Plugin, ...]:
    places = _list(value, "plugins") if value != [] else []
    for place in places:
        if not isinstance(place, str) or not place:
            raise ValueError(f"plugins: {place!r} is neither a file nor the name of a plugin")
    return tuple(find_plugin(place) for place in places)


def _training_keys(plugins: Sequence[Plugin]) -> dict[str, Declared]:
    """The keys of ``training``; optimiser and loss may be of a plugin."""
    known = declared(TrainingConfig)
    open_ones = {key: replace(known[key], table=offered_choices(key, plugins)) for key in CHOICES}  # type: ignore[call-arg]
    return {**known, **open_ones}


def _training(value: Any, plugins: Sequence[Plugin], where: str) -> TrainingConfig:
    return TrainingConfig(**checked(mapping(value, where), _training_keys(plugins), where))


def _settable(row: Row, plugins: Sequence[Plugin]) -> dict[str, Declared]:
    """What an entry of ``methods`` may set: the method's parameters, and keys of ``training``."""
    training = _training_keys(plugins)
    return {**{key: training[key] for key in OVERRIDES}, **row.parameters}


def _search(
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
    seeds = _seeds(section.get("seeds", [100]), "search.seeds")
    if shared := set(seeds) & set(grid_seeds):
        raise ValueError(
            f"search.seeds: seed {min(shared)} belongs to the grid; search on other seeds, "
            "or the comparison would be tuned on what it reports"
        )
    trials = Declared("trials", int, range=Range(1), optional=True)
    rows = {method.label: method.row for method in methods}
    others = offered(plugins)
    space: dict[str, dict[str, Axis]] = {}
    for label, axes in mapping(section.get("space", {}), "search.space").items():
        where = f"search.space.{label}"
        if label not in rows and label not in others:
            raise ValueError(f"{where}: the config has no method {label!r}{hint(label, rows)}")
        row = rows[label] if label in rows else find_row(label, others[label])
        known_keys = _settable(row, plugins)
        space[label] = {}
        for key, axis in mapping(axes, where).items():
            if key not in known_keys:
                raise ValueError(f"{where}: no parameter {key!r}{hint(key, known_keys)}")
            space[label][key] = parse_axis(axis, known_keys[key], f"{where}.{key}")
        if not space[label]:
            raise ValueError(f"{where} names no parameter; name one or remove it")
    skews = _list(section["skews"], "search.skews") if section.get("skews") else []
    return SearchConfig(
        seeds, trials.check(section.get("trials"), "search.trials"), tuple(skews), space
    )


def _check_full(config: Config) -> None:
    """What needs a backbone cannot be had where there is none."""
    if config.training.precision != "float32":
        raise ValueError(
            f"training.precision is {config.training.precision}, but trainable: full computes in "
            "float32 alone; remove it"
        )
    if config.adapters.start is not None:
        raise ValueError(
            "adapters.start: with trainable: full there are no adapters that could start from a "
            "checkpoint; remove it, or set trainable to adapters"
        )
    for method in config.methods:
        if method.row.needs_adapters:
            raise ValueError(
                f"methods: {method.label} works on adapters, but with trainable: "
                "full there are no adapters; remove the method, or set trainable to adapters"
            )


def _check_consistency(config: Config) -> None:
    if config.training.precision == "tf32" and config.training.device != "cuda":
        raise ValueError(
            "training.precision is tf32, in which GPUs alone compute; set training.device to cuda, "
            "or precision to float32"
        )
    if config.trainable == "full":
        _check_full(config)
    federation = config.federation
    if federation.clients_per_round > federation.clients:
        raise ValueError(
            f"federation.clients_per_round is {federation.clients_per_round}, more than the "
            f"{federation.clients} clients there are; lower it or raise federation.clients"
        )
    left = federation.clients - federation.kept_out
    if federation.clients_per_round > left:
        raise ValueError(
            f"federation.held_out is {federation.held_out}, which leaves {left} of "
            f"{federation.clients} clients to draw {federation.clients_per_round} from; lower it "
            "or federation.clients_per_round"
        )
    if config.adapters.start is not None and federation.trajectory == "own":
        raise ValueError(
            "federation.trajectory: own gives every client a start of its own, and adapters.start "
            "the same to all; remove one of them"
        )
    if config.backbone not in config.backbones:
        raise ValueError(
            f"backbone: {config.backbone!r} is not described under backbones"
            f"{hint(config.backbone, config.backbones)}"
        )
    if federation.shapley is True:
        check_players(federation.clients_per_round)
    config.conditions.require_possible(federation.clients, federation.clients_per_round)
    for method in config.methods:
        wants = method.row.optimiser
        given = method.overrides.get("optimiser", wants)
        if wants is not None and given != wants:
            raise ValueError(
                f"methods: {method.label} prescribes {wants}; remove 'optimiser: {given}'"
            )
        decay = given.get(WEIGHT_DECAY) if isinstance(given, Mapping) else None
        if method.row.undecayed and decay:
            raise ValueError(
                f"methods: {method.label} forbids weight decay; remove '{WEIGHT_DECAY}: {decay}'"
            )


def parse_config(raw: Any) -> Config:
    """Check a config given as plain mappings and return it, or raise ``ValueError``."""
    known = {entry.name for entry in fields(Config)} - {"own"}
    given = mapping(raw, "the config")
    for key in given:
        if key not in known:
            raise ValueError(f"the config has an unknown key {key!r}{hint(key, sorted(known))}")
    for key in ("experiment", "datasets", "backbone", "backbones", "skews", "seeds", "methods"):
        if key not in given:
            raise ValueError(f"the config lacks the key {key!r}")
    plugins = _plugins(given.get("plugins", []))
    methods = tuple(method_entry(entry, plugins) for entry in _list(given["methods"], "methods"))
    labels = [method.label for method in methods]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"methods: two entries are called {label!r}; give one a 'name'")
    seeds = _seeds(given["seeds"], "seeds")
    datasets, own = parse_datasets(
        [
            entry if isinstance(entry, Mapping) else _name(entry, "datasets: entry")
            for entry in _list(given["datasets"], "datasets")
        ]
    )
    skews = _skews(given["skews"])
    partition = make(PartitionConfig, given.get("partition", {}), "partition")
    federation = mapping(given.get("federation", {}), "federation")
    if federation.get("clients") == ALL:
        clients = natural_clients(datasets, own, skews, partition.min_samples)
        given = {**given, "federation": {**federation, "clients": clients}}
    backbones = mapping(given["backbones"], "backbones")
    config = Config(
        experiment=_name(given["experiment"], "experiment"),
        datasets=datasets,
        backbone=_name(given["backbone"], "backbone"),
        backbones={n: dict(mapping(b, f"backbones.{n}")) for n, b in backbones.items()},
        skews=skews,
        seeds=seeds,
        federation=make(FederationConfig, given.get("federation", {}), "federation"),
        partition=partition,
        training=_training(given.get("training", {}), plugins, "training"),
        adapters=make(AdaptersConfig, given.get("adapters", {}), "adapters"),
        methods=methods,
        search=_search(given.get("search", {}), seeds, methods, plugins),
        checkpoint_seconds=SECONDS.check(
            given.get("checkpoint_seconds", 30.0), "checkpoint_seconds"
        ),
        conditions=parse_conditions(given.get("conditions"), plugins=plugins),
        scenarios=_scenarios(given.get("scenarios", {}), given, methods, plugins),
        plugins=plugins,
        trainable=TRAINABLE.check(given.get("trainable", "adapters"), "trainable"),
        tables=_pages(given, "tables"),
        figures=_pages(given, "figures"),
        own=own,
    )
    primary = parse_primary(
        given.get("primary"),
        labels,
        config.settings,
        config.datasets,
        config.federation.clients,
    )
    config = replace(config, primary=primary)
    for case in cases(config):
        _check_consistency(case)
    return config


def _scenarios(
    value: Any,
    shared: Mapping[str, Any],
    methods: Sequence[MethodConfig],
    plugins: Sequence[Plugin],
) -> dict[str, Scenario]:
    """Every scenario laid over the config's own sections (``shared``)."""
    found = {}
    known = ("federation", "training", "conditions", "parameters")
    for name, given in mapping(value, "scenarios").items():
        where = f"scenarios.{name}"
        if not isinstance(name, str) or not _SCENARIO.fullmatch(name):
            raise ValueError(
                f"scenarios: the name {name!r} must be made of letters, digits, '.', '_', '~' "
                "and '-'; it is part of paths"
            )
        for key, value in mapping(given, where).items():
            if key not in known:
                raise ValueError(f"{where}: unknown key {key!r}{hint(key, known)}")
            mapping({} if value is None else value, f"{where}.{key}")
        if "clients" in (given.get("federation") or {}):
            raise ValueError(
                f"{where}.federation.clients: scenarios share their clients; make it an experiment "
                "of its own"
            )
        merged = {key: _merge(shared.get(key) or {}, given.get(key) or {}) for key in known[:3]}
        found[name] = Scenario(
            make(FederationConfig, merged["federation"], f"{where}.federation"),
            _training(merged["training"], plugins, f"{where}.training"),
            parse_conditions(merged["conditions"], f"{where}.conditions", plugins),
            _parameters(given.get("parameters") or {}, methods, f"{where}.parameters"),
        )
    return found


def _parameters(value: Any, methods: Sequence[MethodConfig], where: str) -> dict[str, Any]:
    """Values for the parameters of these names, of whichever method has them."""
    found = {}
    for key, given in mapping(value, where).items():
        owners = [m for m in methods if key in m.row.parameters]
        if not owners:
            known = {name for method in methods for name in method.parameters}
            raise ValueError(f"{where}: no method has a parameter {key!r}{hint(key, known)}")
        for owner in owners:
            found[key] = owner.row.parameters[key].check(given, f"{where}.{key}")
    return found


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


def _merge(base: Mapping[str, Any], update: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings merge key by key and everything else is replaced, as Snakemake does."""
    merged = dict(base)
    for key, value in update.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _in_a_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _setting(text: str) -> dict[str, Any]:
    """``federation.rounds=3`` as the mappings that a file with this one value would give."""
    place, sign, value = text.partition("=")
    if not sign or not all(place.split(".")):
        raise ValueError(f"--set {text!r}: write key=value, such as training.device=cuda")
    try:
        setting: Any = yaml.safe_load(value)
    except _NO_YAML as error:
        why = _in_a_line(error)
        raise ValueError(
            f"--set {text!r:.99}: {value!r:.99} is not a value in YAML ({why})"
        ) from error
    for key in reversed(place.split(".")):
        setting = {key: setting}
    return dict(setting)


#: Beside all rooms, since whoever installs the package wants it.
DEFAULT_FILE = Path(__file__).parents[1] / "default_config.yaml"


def default_file() -> Path:
    """The config that all others are laid over: $FEDSDG_CONFIG, else the package's own."""
    return Path(os.environ.get("FEDSDG_CONFIG") or DEFAULT_FILE)


def load_config(
    paths: Sequence[str | Path] = (), settings: Sequence[str] = (), plugins: Sequence[str] = ()
) -> Config:
    """Lay config files over ``default_file()``, in order, and check what comes of it.

    Mappings are merged, all else is replaced; so is ``search``, since a space belongs to the
    methods and the data that it was made for. ``settings`` are single values laid over the files,
    as ``training.device=cuda``; ``plugins`` are
    added to those that the config lists.
    """
    merged: dict[str, Any] = {}
    for file in [default_file(), *map(Path, paths)]:
        if not os.path.isfile(file):
            raise FileNotFoundError(f"there is no config file {file}; name one with --config")
        try:
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
        except _NO_YAML as error:
            raise ValueError(f"{file} is not valid YAML: {_in_a_line(error)}") from error
        laid = mapping(content, f"the config file {file}")
        if "search" in laid:
            merged.pop("search", None)
        merged = _merge(merged, laid)
    for text in settings:
        merged = _merge(merged, _setting(text))
    listed = merged.get("plugins", [])
    if plugins and isinstance(listed, list):
        merged["plugins"] = [*listed, *(place for place in plugins if place not in listed)]
    return parse_config(merged)
