"""Configs in which a method of the table can run, and facts by which a backbone is a recipe's."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from fedsdg.experiment.backbones.recipe import parse_backbone
from fedsdg.experiment.config import Config
from fedsdg.methods.families import METHODS


def suited(config: Config, name: str) -> Config:
    """The config, with all clients in every round or samples for the server where the method
    cannot do without."""
    rule, federation = METHODS[name].rule, config.federation
    try:
        rule.require(federation.clients_per_round, federation.clients)
    except ValueError:
        federation = dataclasses.replace(federation, clients_per_round=federation.clients)
    conditions = config.conditions
    if any(request.kind == "losses" for request in rule.probes):
        conditions = dataclasses.replace(conditions, benchmark_images=20)
    return dataclasses.replace(config, federation=federation, conditions=conditions)


def facts_of(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What stands beside a backbone that was made by a recipe (``source`` left out)."""
    return {"source": "pretrain", "recipe": dataclasses.asdict(parse_backbone(recipe))}
