"""Scenarios: what each lays over a config's own sections; the whole grid is run under each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsdg.experiment.conditions import Conditions, parse_conditions
from fedsdg.experiment.method_entries import MethodConfig, parse_parameters, parse_training
from fedsdg.experiment.sections import (
    FederationConfig,
    TrainingConfig,
)
from fedsdg.files import hint
from fedsdg.methods.plugins import (
    Plugin,
)
from fedsdg.parts import make, mapping

_SCENARIO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]*")


@dataclass(frozen=True)
class Scenario:
    """What a scenario changes: whole sections, and parameters of all methods that have them."""

    federation: FederationConfig
    training: TrainingConfig
    conditions: Conditions
    parameters: Mapping[str, Any]


def parse_scenarios(
    value: Any,
    shared: Mapping[str, Any],
    methods: Sequence[MethodConfig],
    plugins: Sequence[Plugin],
) -> dict[str, Scenario]:
    """Return every scenario laid over the config's own sections (``shared``).

    One that is null, in a file laid over another that has it, is left out.
    """
    found = {}
    known = ("federation", "training", "conditions", "parameters")
    for name, given in mapping(value, "scenarios").items():
        where = f"scenarios.{name}"
        if not isinstance(name, str) or not _SCENARIO.fullmatch(name):
            raise ValueError(
                f"scenarios: the name {name!r} must be made of letters, digits, '.', '_', '~' "
                "and '-'; it is part of paths"
            )
        if given is None:
            continue
        for key, value in mapping(given, where).items():
            if key not in known:
                raise ValueError(f"{where}: unknown key {key!r}{hint(key, known)}")
            mapping({} if value is None else value, f"{where}.{key}")
        if "clients" in (given.get("federation") or {}):
            raise ValueError(
                f"{where}.federation.clients: scenarios share their clients; make it an experiment "
                "of its own"
            )
        merged = {key: laid_over(shared.get(key) or {}, given.get(key) or {}) for key in known[:3]}
        found[name] = Scenario(
            make(FederationConfig, merged["federation"], f"{where}.federation"),
            parse_training(merged["training"], plugins, f"{where}.training"),
            parse_conditions(merged["conditions"], f"{where}.conditions", plugins),
            parse_parameters(given.get("parameters") or {}, methods, f"{where}.parameters"),
        )
    return found


def laid_over(base: Mapping[str, Any], update: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings merge key by key and everything else is replaced, as Snakemake does."""
    merged = dict(base)
    for key, value in update.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = laid_over(merged[key], value) if both else value
    return merged
