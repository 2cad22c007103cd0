"""All columns of the records that not every run has, from whoever fills them. Imports torch."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from fedsdg.experiment.conditions import Conditions
from fedsdg.federation.conditions.attack import Attackers
from fedsdg.federation.observers.branches import Branches
from fedsdg.federation.observers.shapley import Shapley
from fedsdg.federation.observers.trajectory import Trajectory
from fedsdg.federation.records import COLUMNS
from fedsdg.files.columns import Column, columns_of
from fedsdg.files.records import CLIENTS_SCHEMA, ROUNDS_SCHEMA
from fedsdg.methods.families import METHODS
from fedsdg.parts import declared


def declared_columns() -> dict[str, list[dict[str, Any]]]:
    """The columns that conditions, parts of methods and observers declare, by their table.

    Raises ``TypeError`` where two declare one name differently, and where every run has it.
    """
    conditions = [one.kind for one in declared(Conditions).values() if one.holds_part]
    methods = [part for method in METHODS.values() for part in method.slots]
    parts = (*conditions, Attackers, *methods, Trajectory, Branches, Shapley)
    return gathered([*map(columns_of, parts), COLUMNS])


def gathered(declarations: Iterable[Iterable[Column]]) -> dict[str, list[dict[str, Any]]]:
    """Columns of several, by their table, each once."""
    found: dict[tuple[bool, str], Column] = {}
    for columns in declarations:
        for one in columns:
            of_rounds = one.table == "rounds"
            if one.name in (ROUNDS_SCHEMA if of_rounds else CLIENTS_SCHEMA).names:
                raise TypeError(f"every run has a column {one.name!r} of {one.table}; rename it")
            if found.setdefault((of_rounds, one.name), one) != one:
                raise TypeError(
                    f"two declare a column {one.name!r} differently; rename one of them"
                )
    tables: dict[str, list[dict[str, Any]]] = {"rounds": [], "clients": [], "diagnostics": []}
    for one in found.values():
        said = asdict(one)
        tables[said.pop("table")].append(said)
    return tables
