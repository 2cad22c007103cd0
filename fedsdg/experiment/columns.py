"""All columns of the records that not every run has, from whoever fills them. Imports torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from fedsdg.experiment.conditions import Conditions
from fedsdg.experiment.sections import FederationConfig
from fedsdg.federation import shapley
from fedsdg.federation.branches import Branches
from fedsdg.federation.records import Records
from fedsdg.federation.trajectories import Trajectory
from fedsdg.files.columns import Column, columns_of
from fedsdg.files.records import CLIENTS_SCHEMA, ROUNDS_SCHEMA
from fedsdg.methods.families import METHODS
from fedsdg.parts import declared

#: Who is neither a condition nor a part of a method.
_OTHERS = (FederationConfig, Trajectory, Branches, Records, shapley)


def declared_columns() -> dict[str, list[dict[str, Any]]]:
    """The columns that conditions, parts of methods and observers declare, by their table.

    Raises ``TypeError`` where two declare one name differently, and where every run has it.
    """
    conditions = [one.kind for one in declared(Conditions).values() if one.holds_part]
    parts = [part for method in METHODS.values() for part in method.slots]
    return gathered(columns_of(one) for one in (*conditions, *parts, *_OTHERS))


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
