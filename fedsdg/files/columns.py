"""How whoever fills a column of the records declares it."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Column:
    """A column that a file of records has only where somebody fills it.

    It is an entry of ``columns`` of the rule, the condition or the observer that does. ``make
    documents`` writes all of them into ``fedsdg/declarations.json``, where ``files.records`` reads
    them. ``table``: "diagnostics" is what a rule says of each client under this name, which is
    recorded with the clients.
    """

    table: Literal["rounds", "clients", "diagnostics"]
    name: str
    kind: Literal["int32", "int64", "float64", "bool", "list of float64", "binary"]
    meaning: str


def columns_of(*parts: Any) -> tuple[Column, ...]:
    """The columns that parts, and the parts within them, declare in ``columns``; each once."""
    found: dict[tuple[str, str], Column] = {}
    for one in parts:
        found |= {(column.table, column.name): column for column in getattr(one, "columns", ())}
        if is_dataclass(one) and not isinstance(one, type):
            inner = columns_of(*(getattr(one, entry.name) for entry in fields(one)))
            found |= {(column.table, column.name): column for column in inner}
    return tuple(found.values())
