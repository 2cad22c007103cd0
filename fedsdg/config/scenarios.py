"""Scenarios: settings laid over a config; the whole grid runs under each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsdg.config.entries import Entry
from fedsdg.config.plugins import METHODS
from fedsdg.errors import require_one_of
from fedsdg.parts import Natural, Part

SECTIONS = ("federation", "training", "conditions")
"""The sections that a scenario may change."""


class Scenario(Part):
    """Settings laid over the config's own sections; the whole grid runs under each scenario."""

    federation: dict[str, Any] | None = None
    "other keys of `federation`, except `clients`"
    training: dict[str, Any] | None = None
    "other keys of `training`"
    conditions: dict[str, Any] | None = None
    "other keys of `conditions`"
    parameters: dict[str, Any] | None = None
    "values of all methods that have parameters of these names"
    partition_seed: Natural | None = None
    "the partition of this seed for all runs"

    def check_fields(self) -> None:
        """Refuse clients of its own."""
        if "clients" in (self.federation or {}):
            raise ValueError(
                "federation.clients: scenarios share them; make it an experiment of its own"
            )

    def laid_over(
        self, raw: Mapping[str, Any], entries: tuple[Entry, ...], name: str
    ) -> dict[str, Any]:
        """Return a config under the scenario, to be read again.

        Args:
            raw: The config as its files say it.
            entries: Its methods.
            name: That of the scenario, for the error.

        Raises:
            ConfigError: No known method has a parameter of such a name.
        """
        known = list(dict.fromkeys(key for row in METHODS.values() for key in row.parameters))
        for key in self.parameters or {}:
            place = f"scenarios.{name}.parameters"
            require_one_of(known, key, ": no method has a parameter", place)
        methods = [self.entry(entry) for entry in entries]
        changes = {key: value for key, value in self if key != "parameters" and value is not None}
        return overlay({**raw, "methods": methods, "scenarios": {}}, changes)

    def entry(self, entry: Entry) -> Entry:
        """Return an entry of ``methods`` with the scenario's values of its parameters."""
        given = (self.parameters or {}).items()
        values = {key: value for key, value in given if key in entry.parameters}
        return entry.with_values(values) if values else entry


def overlay(base: Mapping[str, Any], update: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings key by key and replace everything else, as Snakemake does.

    Args:
        base: The lower mapping.
        update: What is laid over it.

    Example:
        >>> overlay({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
        {'a': {'b': 3, 'c': 2}}
    """
    merged = dict(base)
    for key, value in update.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = overlay(merged[key], value) if both else value
    return merged
