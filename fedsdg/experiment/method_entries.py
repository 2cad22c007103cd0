"""An entry of a config's ``methods``: a row, its label, and what it sets for itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedsdg.experiment.config_values import parse_name
from fedsdg.experiment.sections import (
    TrainingConfig,
)
from fedsdg.files import hint
from fedsdg.files.places import root
from fedsdg.files.strict_yaml import read_yaml
from fedsdg.methods.declared import Row
from fedsdg.methods.plugins import (
    CHOICES,
    Plugin,
    find_row,
    offered,
    offered_choices,
)
from fedsdg.parts import Declared, checked, declared, mapping

#: Keys of ``training`` that a method's entry may set for itself.
OVERRIDES = ("optimiser", "loss", "eta_g", "eta_p", "eta_m", "private_optimiser", "refresh")


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

    def with_values(self, values: Mapping[str, Any]) -> MethodConfig:
        """The entry with these values, which are right, in place of its own."""
        known = self.row.parameters
        return replace(
            self,
            parameters={**self.parameters, **{k: v for k, v in values.items() if k in known}},
            overrides={**self.overrides, **{k: v for k, v in values.items() if k not in known}},
        )

    def under(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Its parameters in a scenario that sets some for all methods that have them."""
        known = self.row.parameters
        given = {key: value for key, value in parameters.items() if key in known}
        return {**self.parameters, **given}


def method_entry(entry: Any, plugins: Sequence[Plugin] = ()) -> MethodConfig:
    """Check one entry of ``methods``: a name, or a mapping with ``type`` and parameters."""
    known_methods = offered(plugins)
    given = {"type": entry} if isinstance(entry, str) else dict(mapping(entry, "methods entry"))
    kind = str(given.pop("type", ""))
    if kind not in known_methods:
        if not kind:
            raise ValueError(f"methods: the entry {entry!r} has no 'type'")
        raise ValueError(f"methods: unknown method {kind!r}{hint(kind, known_methods)}")
    label = parse_name(given.pop("name", kind), f"methods: name of {kind}")
    row = find_row(kind, known_methods[kind])
    parameters = {key: one.default for key, one in row.parameters.items()}
    overrides = {}
    training = training_keys(plugins)
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


def with_tuned(
    methods: Sequence[MethodConfig],
    files: Sequence[str],
    space: Mapping[str, Any],
    plugins: Sequence[Plugin],
) -> tuple[tuple[MethodConfig, ...], frozenset[str]]:
    """Lay the values that searches found over the entries.

    Args:
        methods: The entries of the config.
        files: Mappings of labels to values, as ``fedsdg search`` writes them, the later over the
            earlier: relative to the working directory, else to what comes with the package. They
            need not be there yet.
        space: What the config searches, by label; the last file is that search's.
        plugins: Those of the config.

    Returns:
        The entries, and the labels of those that are not tuned: which lack a value that their
        space names, or are not in the last file and set no ``eta_g`` of their own.

    Raises:
        ValueError: A file holds something else, or a value that a parameter does not allow.
    """
    laid: list[MethodConfig] = list(methods)
    tuned: Mapping[str, Any] = {}
    for file in files:
        place = next((p for p in (Path(file), root() / file) if p.is_file()), None)
        read = {} if place is None else read_yaml(place) or {}
        tuned = mapping(read, f"the tuned values in {place}")
        laid = [_with_values(method, tuned, f"{place}", plugins) for method in laid]
    untuned = set()
    for method in methods:
        lacks = set(space.get(method.label, ())) - set(tuned.get(method.label, ()))
        if lacks if method.label in tuned else "eta_g" not in method.overrides:
            untuned.add(method.label)
    return tuple(laid), frozenset(untuned)


def _with_values(
    method: MethodConfig, tuned: Mapping[str, Any], place: str, plugins: Sequence[Plugin]
) -> MethodConfig:
    where = f"{place}: {method.label}"
    values = mapping(tuned.get(method.label, {}), where)
    known = settable(method.row, plugins)
    for key in values:
        if key not in known:
            raise ValueError(f"{where} has no parameter {key!r}{hint(key, known)}")
    return method.with_values({k: known[k].check(v, f"{where}.{k}") for k, v in values.items()})


def training_keys(plugins: Sequence[Plugin]) -> dict[str, Declared]:
    """The keys of ``training``; optimiser and loss may be of a plugin."""
    known = declared(TrainingConfig)
    open_ones = {key: replace(known[key], table=offered_choices(key, plugins)) for key in CHOICES}  # type: ignore[call-arg]
    return {**known, **open_ones}


def parse_training(value: Any, plugins: Sequence[Plugin], where: str) -> TrainingConfig:
    """The section ``training``, with rows of plugins where it names them."""
    return TrainingConfig(**checked(mapping(value, where), training_keys(plugins), where))


def settable(row: Row, plugins: Sequence[Plugin]) -> dict[str, Declared]:
    """What an entry of ``methods`` may set: the method's parameters, and keys of ``training``."""
    training = training_keys(plugins)
    return {**{key: training[key] for key in OVERRIDES}, **row.parameters}


def parse_parameters(value: Any, methods: Sequence[MethodConfig], where: str) -> dict[str, Any]:
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
