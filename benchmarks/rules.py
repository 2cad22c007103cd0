"""The rules that are measured: how each is called, and how much memory it has to move."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from benchmarks.cohorts import Cohort
from benchmarks.timing import Work
from fedsdg.aggregation import rule_table
from fedsdg.aggregation.rule_table import make_rule


class Measured(NamedTuple):
    """A rule's demands: what no implementation of it can do without."""

    passes: int
    """Reads of the uploads [M, d]: two where the weights depend on all of them."""
    robust: bool = False
    """Whether it takes f, the number of Byzantine clients to withstand."""
    uploads: tuple[str, ...] = ("update",)
    least_clients: int = 1


_WANTED = {
    "fedsdg": Measured(2),
    "fedavg": Measured(1),
    "krum": Measured(1, robust=True, least_clients=5),
    "multikrum": Measured(2, robust=True, least_clients=5),
    "geometric-median": Measured(2),
    "coordinate-median": Measured(1),
    "trimmed-mean": Measured(1, robust=True, least_clients=3),
    "cgsv": Measured(2),
    "scaffold": Measured(1, uploads=("update", "control")),
}
# An older commit that is measured with these files may lack the younger rules, and before 0.2 has
# them in a table.
_KNOWN = rule_table.rules() if hasattr(rule_table, "rules") else rule_table.RULES
RULES = {name: facts for name, facts in _WANTED.items() if name in _KNOWN}


def least_bytes(name: str, clients: int, parameters: int) -> int:
    """4 d (passes M + 3) for every upload: a result is read, read for ownership, and written.

    The three rows are the parameters that the step is added to, the line of memory that a store
    fetches first, and the store.
    """
    rule = RULES[name]
    return 4 * parameters * (rule.passes * clients + 3) * len(rule.uploads)


def ours(name: str, cohort: Cohort) -> Work:
    """The rule on the cohort's updates, as the federation calls it."""
    row: dict[str, Any] = {"type": name}
    rule = make_rule(row | ({"f": cohort.f} if RULES[name].robust else {}))
    state = rule.init(cohort.parameters, cohort.context.client_samples)
    uploads: dict[str, torch.Tensor] = dict.fromkeys(RULES[name].uploads, cohort.updates)
    if "control" in uploads:
        uploads["control"] = cohort.updates.clone()
    return lambda: rule(uploads, cohort.context, state)
