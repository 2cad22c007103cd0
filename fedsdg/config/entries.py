"""Entries of ``methods``: a row of the table, its label, and the values that the entry sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fedsdg.config import plugins
from fedsdg.config.sections import OVERRIDES, Training
from fedsdg.config.values import Name
from fedsdg.errors import ConfigError, require_one_of, shortened
from fedsdg.files.places import root
from fedsdg.files.yaml_text import read_yaml_file
from fedsdg.methods.families import FAMILIES
from fedsdg.methods.method import Method
from fedsdg.parts import Part, model_of


class Entry(Part):
    """A method of the grid: its row, its label, its parameters, and its keys of ``training``."""

    type: str
    "name of the method"
    label: Name
    "its name in paths and tables"
    parameters: dict[str, Any]
    "all parameters of its method"
    training: dict[str, Any]
    "keys of ``training`` that it sets for itself"
    lacking: str = ""
    "the file that is to hold the values of its search, but does not yet; empty: it needs none"

    def check_fields(self) -> None:
        """Refuse values that do not go together, and what the method does not permit."""
        row = self.row
        row.with_values(self.parameters)
        optimiser = self.training.get("optimiser")
        if optimiser is None:
            return
        name = optimiser.registered_as
        if row.optimiser not in (None, name):
            raise ConfigError(f"prescribes {row.optimiser}; remove 'optimiser: {name}'")
        if optimiser.memory and any(term.plain for term in row.terms):
            raise ConfigError("prescribes sgd without momentum; remove 'momentum'")
        decay = getattr(optimiser, "weight_decay", 0.0)
        if row.undecayed and decay and "weight_decay" in optimiser.model_fields_set:
            raise ConfigError(f"forbids weight decay; remove 'weight_decay: {decay}'")

    @property
    def row(self) -> Method:
        """The row of the table of methods."""
        return find(self.type)

    @property
    def method(self) -> Method:
        """The row with the values of the entry."""
        return self.row.with_values(self.parameters)

    @property
    def facts(self) -> dict[str, Any]:
        """What records keep of it, so that tables and figures need no plugins.

        ``title`` in print; ``family``; ``personal``: whether clients end with different models;
        ``oracle``: whether it knows the groups or has all data in one place; ``order`` in tables,
        where variants follow their method.
        """
        title = self.row.title
        variant = self.label.removeprefix(self.type).removeprefix("-")
        if not self.label.startswith(self.type):
            title = self.label
        elif variant:
            title = f"{title[:-1]}, {variant})" if title.endswith(")") else f"{title} ({variant})"
        return {
            "title": title,
            "family": next((name for name, rows in FAMILIES.items() if self.type in rows), ""),
            "personal": self.row.personal,
            "oracle": "clusters" in self.method.rule.server_prior or self.method.sharing.central,
            "order": 2 * list(plugins.METHODS).index(self.type) + (self.label != self.type),
        }

    def with_values(self, values: Mapping[str, Any]) -> Entry:
        """Return the entry with some values in place of its own, checked.

        Raises:
            ConfigError: An unknown parameter, or a value that it does not allow.
        """
        given = {**self.parameters, **self.training, **values}
        return read_entry({"type": self.type, "name": self.label, **given})


def find(name: Any) -> Method:
    """Return the method of a name, or raise ConfigError with the closest one."""
    require_one_of(plugins.METHODS, name, "names no method of the package or of 'plugins':")
    return plugins.METHODS[name]


@cache
def settings_of(name: str) -> type[Part]:
    """Return the model of what an entry sets: parameters of its method, keys of ``training``."""
    return model_of({key: Training.model_fields[key] for key in OVERRIDES} | find(name).parameters)


def read_entry(given: Any) -> Entry:
    """Check one entry.

    Args:
        given: A name, or a mapping with ``type`` and parameters.

    Returns:
        The entry with all parameters of its method.

    Raises:
        ConfigError: It names no method, an unknown parameter, or a value out of range.
    """
    raw = {"type": given} if isinstance(given, str) else given
    if not isinstance(raw, Mapping) or raw.get("type") is None:
        raise ConfigError(f"is {shortened(given)}, but must be a name or a mapping with a 'type'")
    row = find(raw["type"])
    label = raw.get("name") or raw["type"]
    place = " ".join(str(label).split())
    settings = {key: value for key, value in raw.items() if key not in ("type", "name")}
    values = settings_of(raw["type"]).read(settings, place)
    parameters = {key: getattr(values, key) for key in row.parameters}
    training = {key: getattr(values, key) for key in OVERRIDES if key in settings}
    entry = {"type": raw["type"], "label": label, "parameters": parameters, "training": training}
    return Entry.read(entry, place)


def read_entries(given: Any) -> tuple[Entry, ...]:
    """Check the list of all entries."""
    if not isinstance(given, list | tuple) or not given:
        raise ConfigError(f"is {shortened(given)}, but must be a list with at least one entry")
    return tuple(entry if isinstance(entry, Entry) else read_entry(entry) for entry in given)


def with_tuned(
    entries: Iterable[Entry], files: Sequence[str], space: Mapping[str, Mapping[str, Any]]
) -> tuple[Entry, ...]:
    """Lay the values that searches found over entries.

    Args:
        entries: The methods of a config.
        files: Hold mappings of labels to values, the later laid over the earlier: relative to the
            working directory, else to what comes with the package. They need not be there yet.
        space: Label → parameter → axis of the search.

    Returns:
        The entries. ``lacking`` names the last file where an entry lacks a value that its space
        names, or where neither it nor its method is in that file and it sets no ``eta_g``.
    """
    layers = [_tuned(file) for file in files]
    laid: list[Entry] = []
    for entry in entries:
        name = entry.label
        has_rate = "eta_g" in entry.training
        # A variant that is not searched takes the values of its method.
        if name not in {*space, *layers[-1]} and not has_rate:
            name = entry.type
        values: dict[str, Any] = {}
        for layer in layers:
            values |= layer.get(name) or {}
        found = layers[-1].get(name) or {}
        wanted = {key for key, axis in space.get(entry.label, {}).items() if axis is not None}
        is_tuned = bool(found) and wanted <= found.keys() if name in layers[-1] else has_rate
        filled = entry.with_values(values) if values else entry
        laid.append(filled if is_tuned else filled.replaced(lacking=files[-1]))
    return tuple(laid)


def _tuned(file: str) -> Mapping[str, Any]:
    """Return the values by label in a file that a search wrote; none if it is not there yet."""
    place = next((p for p in (Path(file), root() / file) if p.is_file()), None)
    tuned = read_yaml_file(place) or {} if place else {}
    for values in tuned.values() if isinstance(tuned, Mapping) else [tuned]:
        if not isinstance(values, Mapping | None):
            fault = f"{shortened(values)} stands where a mapping of keys to values must be"
            raise ConfigError(f"names {file}, in which {fault}", "tuned")
    return tuned
