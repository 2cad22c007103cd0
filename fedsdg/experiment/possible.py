"""Whether methods can work in the federation that a config describes: said by their own parts.

A rule knows how many clients it needs, a stopping rule whether clients must differ in speed. To ask
them they are made, which imports torch; so a config that is only read is not asked, and every
command that runs something, or checks it, asks first.
"""

from __future__ import annotations

from fedsdg.experiment.conditions import Conditions
from fedsdg.experiment.config import Config, cases
from fedsdg.methods.plugins import find_method


def require_possible(config: Config, only: str | None = None) -> None:
    """Raise ``ValueError`` for a method that cannot work in a setting of the config.

    ``only``: the label of the one that is to run; None: all are.
    """
    for case in cases(config):
        cohort, clients = case.federation.clients_per_round, case.federation.clients
        for entry in case.methods:
            if only not in (None, entry.label):
                continue
            try:
                method = find_method(entry.type, entry.plugin).with_values(entry.parameters)
                method.rule.require(cohort, clients)
                if method.stopping is not None:
                    method.stopping.require(differ_in_speed(case.conditions))
            except ValueError as error:
                raise ValueError(f"methods: {entry.label}: {error}") from error


def differ_in_speed(conditions: Conditions) -> bool:
    """Whether some clients are slower than others."""
    compute = conditions.compute
    return compute is not None and compute.slowest < compute.fastest
