"""One run of an experiment, and the address under which it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsdg.config import plugins
from fedsdg.config.entries import Entry
from fedsdg.config.sections import Adapters, Conditions, Federation, Training
from fedsdg.data.partition import PartitionSettings
from fedsdg.files import sha256_json
from fedsdg.methods.families import METHODS
from fedsdg.parts import Part, plain

NUMERICS = 2
"""Raise it when equal configs no longer give equal records; tests/golden says when."""


class Run(Part):
    """All that the records of a run depend on, except the bytes of data and backbone."""

    dataset: str
    "its name"
    skew: str
    "how clients differ in what they hold"
    scenario: str
    "its name; empty if the config has none. No part of the address"
    seed: int
    "determines cohorts, initial values, batches and conditions"
    partition_seed: int
    "determines which client holds which sample"
    method: Entry
    "the method with its parameters; its label is no part of the address"
    trainable: str
    "adapters or full"
    backbone: str
    "its name"
    federation: Federation
    "clients, cohorts and rounds"
    partition: PartitionSettings
    "how samples are divided among clients"
    training: Training
    "local training, with the values of method and entry and the resolved kernel"
    adapters: Adapters
    "LoRA adapters of the frozen backbone"
    conditions: Conditions
    "attacks, dropout, noise and other conditions"

    @property
    def setting(self) -> str:
        """The skew, under a scenario as ``{skew}@{scenario}``."""
        return f"{self.skew}@{self.scenario}" if self.scenario else self.skew

    @property
    def folder(self) -> str:
        """The folder of its records, below that of the experiment."""
        clients = f"clients~{self.federation.clients}"
        return f"{self.dataset}/{clients}/{self.setting}/{self.method.label}/seed~{self.seed}"

    def identity(self, experiment: str) -> dict[str, Any]:
        """Return what names the run in its ``result.json``."""
        named = {
            "experiment": experiment,
            "dataset": self.dataset,
            "clients": self.federation.clients,
            "skew": self.setting,
            "scenario": self.scenario,
            "method": self.method.type,
            "label": self.method.label,
            "seed": self.seed,
            # Records cannot know it otherwise.
            "title": self.method.row.title if self.method.type not in METHODS else None,
            "attack": self.conditions.attack and self.conditions.attack.attack.registered_as,
        }
        return {key: value for key, value in named.items() if value not in (None, "")}

    def overrides(self) -> dict[str, Any]:
        """Return what differs from the defaults: a key that is added later moves no older run."""
        defaults = self.method.row.parameters
        given = self.method.parameters.items()
        changed = {key: plain(value) for key, value in given if value != defaults[key].default}
        return self._read({**super().overrides(), "parameters": changed})

    def complete(self) -> dict[str, Any]:
        """Return all values in JSON's types, null aside, as ``result.json`` keeps them."""
        values = self.model_dump(mode="json", exclude_none=True, exclude={"method"})
        conditions = values["conditions"]
        if not self.conditions.others:
            del conditions["others"]
        if self.conditions.attack is not None:
            attack = self.conditions.attack.attack
            share = conditions["attack"]["share"]
            named = {"type": attack.registered_as, "share": share}
            conditions["attack"] = {**named, **attack.model_dump(mode="json", exclude_none=True)}
        given = self.method.parameters.items()
        parameters = {key: plain(value) for key, value in given if value is not None}
        return self._read({**values, "parameters": parameters})

    def _read(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return values of a run without those that are empty or that it does not read."""
        unread = {"scenario", "trainable"}
        if self.trainable == "full":
            unread = {"scenario", "adapters", "backbone"}
        if self.partition_seed == self.seed:
            unread.add("partition_seed")
        values = {**values, "method": self.method.type}
        return {key: value for key, value in values.items() if key not in unread and value != {}}

    def key(self, partition: str, backbone: str, versions: Mapping[str, str]) -> str:
        """Return the address of the run: SHA-256 of all that its numbers depend on.

        Args:
            partition: SHA-256 of the partition.
            backbone: SHA-256 of the backbone; empty for ``trainable: full``.
            versions: Of the libraries that compute, by name.
        """
        parts: list[Part] = [self.training.optimiser, self.training.loss, *self.conditions.others]
        if self.conditions.attack is not None:
            parts.append(self.conditions.attack.attack)
        facts = {
            "run": self.overrides(),
            "partition": partition,
            "backbone": backbone,
            "numerics": [NUMERICS, self.method.row.numerics],
            "versions": dict(versions),
            "plugins": plugins.hashes(self.method.type, self.dataset, parts),
        }
        return sha256_json(facts)
