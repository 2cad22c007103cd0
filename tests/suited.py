"""Configs in which a method of the table can run: some want more than the others."""

import dataclasses

from fedsdg.experiment.config import Config
from fedsdg.methods.table import METHODS


def suited(config: Config, name: str) -> Config:
    """The config, with all clients in every round or samples for the server where the method
    cannot do without."""
    row, federation = METHODS[name], config.federation
    if row.everybody:
        federation = dataclasses.replace(federation, clients_per_round=federation.clients)
    conditions = config.conditions
    if any(getattr(part.resolve(), "needs_benchmark", False) for part in row.probes):
        conditions = dataclasses.replace(conditions, benchmark_images=20)
    return dataclasses.replace(config, federation=federation, conditions=conditions)
