"""One run as its config says it, and the hash of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fedsdg.data.partition import PartitionSettings
from fedsdg.experiment.conditions import Conditions
from fedsdg.experiment.sections import (
    AdaptersConfig,
    FederationConfig,
    TrainingConfig,
)
from fedsdg.files import sha256_json
from fedsdg.methods.plugins import (
    Plugin,
    find_row,
)
from fedsdg.parts import declared, plain


@dataclass(frozen=True)
class RunConfig:
    """One run: all its records depend on, but the bytes of data, backbone and own sources."""

    dataset: str
    backbone: str
    skew: str
    seed: int
    federation: FederationConfig
    partition: PartitionSettings
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
            found[section] = {key: plain(value) for key, value in given if value is not None}
        # Runs from before a key, or after it, keep the hashes that they had.
        found["partition"]["scheme"] = "per-class"
        keys = {
            section: declared(getattr(self, section))
            for section in ("federation", "partition", "training", "adapters")
        }
        keys["parameters"] = find_row(self.method, self.plugin).parameters
        for section, known in keys.items():
            for key, one in known.items():
                if one.absent is not None and found[section].get(key) == one.absent.value:
                    del found[section][key]
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
